"""Read new entries of a run's sessions: from transcripts or their copies, and from the log for other sessions."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from kingdom.bus.log import LogCursor, LogEntry
from kingdom.bus.operations import Operations, read_log_to_end
from kingdom.bus.port import Bus
from kingdom.soldiers.agents.transcript import TranscriptEntry
from kingdom.soldiers.transcripts.logged_entries import to_transcript_entry
from kingdom.soldiers.transcripts.run_sessions import (
    LogSubject,
    RunSession,
    locate,
    sessions_of,
    with_soldiers,
)
from kingdom.soldiers.transcripts.sources import TranscriptSource
from kingdom.storage.run_texts import RunTexts
from kingdom.workflow import lifecycle

# Only this much of the end of a run's transcripts is shown by default.
_TAIL_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class SessionEntries:
    """New entries of a session. `ends` has the offset in the transcript after each entry, or None for a log entry.

    `notes` say which part of the transcript is not shown, and are given once.
    """

    session: RunSession
    entries: Sequence[TranscriptEntry]
    ends: Sequence[int | None]
    notes: Sequence[str] = ()


class SessionFollower:
    """Reads the new entries of a run's sessions. `texts` are the copies in the store, if it has any."""

    def __init__(self, bus: Bus, operations: Operations, texts: RunTexts | None, subject: LogSubject) -> None:
        self.sessions: dict[str, RunSession] = {}
        self._bus = bus
        self._operations = operations
        self._texts = texts
        self._subject = subject
        self._cursor = LogCursor()
        # The soldier of each Work according to the log so far.
        self._soldiers: dict[str, str] = {}

    async def read_log(self) -> list[LogEntry]:
        """Return the log entries since the last call, and find new sessions in them."""
        run = self._subject.workflow
        entries, self._cursor = await read_log_to_end(self._operations, run.id, self._cursor)
        for session in sessions_of(run, entries):
            if self._subject.has(session) and session.soldier not in self.sessions:
                await locate(self._bus, self._texts, session, await lifecycle.show(self._bus, run.id))
                self.sessions[session.soldier] = session
        return entries

    async def skip_to(self, offset: int) -> None:
        """Skip everything before an offset of the newest transcript."""
        readable = [(session, source) async for session, source in self._transcripts()]
        for session, source in readable:
            session.offset = await source.size()
        for session, _ in readable[-1:]:
            session.offset = offset

    async def skip_to_tail(self) -> list[RunSession]:
        """Skip all but the end of the newest transcripts. Return the sessions whose beginning is skipped."""
        size, skipped = _TAIL_BYTES, []
        for session, source in reversed([each async for each in self._transcripts()]):
            session.offset = await source.tail(size)
            size = max(size - await source.size(), 0)
            if session.offset:
                skipped.append(session)
        return skipped

    async def read_new_entries(self, logged: Sequence[LogEntry]) -> AsyncIterator[SessionEntries]:
        """Yield new entries: first from the log for sessions without a source, then from the transcripts."""
        for soldier, entry in with_soldiers(logged, self._soldiers):
            if news := await self._convert_log_entry(soldier, entry):
                yield news
        for session in self.sessions.values():
            while session.source:
                page = await session.source.read(session.offset)
                if page.next_offset == session.offset:
                    break
                session.offset = page.next_offset
                yield SessionEntries(session, page.entries, page.ends, await self._new_notes(session))

    async def _transcripts(self) -> AsyncIterator[tuple[RunSession, TranscriptSource]]:
        for session in self.sessions.values():
            if session.source and await session.source.size():
                yield session, session.source

    async def _new_notes(self, session: RunSession) -> list[str]:
        notes = await session.source.missing_parts(session.place) if session.source else []
        new = [note for note in notes if note not in session.notes]
        session.notes.update(new)
        return new

    async def _convert_log_entry(self, soldier: str, entry: LogEntry) -> SessionEntries | None:
        session = self.sessions.get(soldier)
        if session is None or session.source is not None:
            return None
        converted = await to_transcript_entry(self._bus, self._subject.workflow, entry)
        if converted is None:
            return None
        note = session.note_about_log
        notes = [] if note in session.notes else [note]
        session.notes.update(notes)
        return SessionEntries(session, [converted], [None], notes)
