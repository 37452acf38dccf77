"""Reads new entries of a run's sessions: from transcripts on this machine, and from the log for other sessions."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from kingdom.bootstrap import operations_of
from kingdom.bus.log import LogCursor, LogEntry
from kingdom.bus.port import Bus
from kingdom.cli.framework.workflow_ids import short
from kingdom.cli.logs.logged_entries import to_transcript_entry
from kingdom.cli.logs.sessions import LogSubject, RunSession, current_sessions, locate, started_session
from kingdom.cli.logs.transcript_view import TranscriptView
from kingdom.cli.workflow.follow import new_entries
from kingdom.soldiers.agents.transcript import TranscriptEntry, read_page, tail_offset
from kingdom.text import printable
from kingdom.workflow.model.run.workflow import Workflow

# Without --all, only this much of the end of a run's transcripts is shown.
_TAIL_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class SessionEntries:
    """New entries of a session. `ends` has the offset in the transcript after each entry, or None for a log entry."""

    session: RunSession
    entries: Sequence[TranscriptEntry]
    ends: Sequence[int | None]


class SessionFollower:
    """Reads the new entries of a run's sessions."""

    def __init__(self, bus: Bus, subject: LogSubject) -> None:
        self.sessions: dict[str, RunSession] = {}
        self._bus = bus
        self._subject = subject
        self._cursor = LogCursor()
        # The soldier of each Work according to the log so far.
        self._soldiers: dict[str, str] = {}

    async def look(self) -> list[LogEntry]:
        """Find new sessions, and return the log entries since the last call."""
        operations = operations_of(self._bus)
        entries, self._cursor = await new_entries(operations, self._subject.workflow.id, self._cursor)
        begun = [session for entry in entries if (session := started_session(entry))]
        # Old log entries may have been removed, so the sessions in the record of the run are added.
        for session in (*begun, *current_sessions(self._subject.workflow)):
            if self._subject.has(session) and session.soldier not in self.sessions:
                await locate(self._bus, session, self._subject.workflow)
                self.sessions[session.soldier] = session
        return entries

    def skip_to(self, offset: int) -> None:
        """Skip everything before an offset of the newest transcript."""
        here = list(self._transcripts())
        for session, path in here:
            session.offset = path.stat().st_size
        for session, _ in here[-1:]:
            session.offset = offset

    def skip_to_tail(self) -> Iterator[RunSession]:
        """Skip all but the end of the newest transcripts. Yield the sessions whose beginning is skipped."""
        size = _TAIL_BYTES
        for session, path in reversed(list(self._transcripts())):
            session.offset = tail_offset(path, size)
            size = max(size - path.stat().st_size, 0)
            if session.offset:
                yield session

    async def read_new_entries(self, logged: Sequence[LogEntry]) -> AsyncIterator[SessionEntries]:
        """Yield new entries: from the log for sessions on other machines, then from the transcripts on this machine."""
        for entry in logged:
            if news := await self._convert_log_entry(entry):
                yield news
        for session in self.sessions.values():
            while session.path and session.path.exists():
                page = await asyncio.to_thread(read_page, session.path, session.offset)
                yield SessionEntries(session, page.entries, page.ends)
                if page.next_offset == session.offset:
                    break
                session.offset = page.next_offset

    def _transcripts(self) -> Iterator[tuple[RunSession, Path]]:
        for session in self.sessions.values():
            if session.path and session.path.exists():
                yield session, session.path

    async def _convert_log_entry(self, entry: LogEntry) -> SessionEntries | None:
        if begun := started_session(entry):
            self._soldiers[begun.work_id] = begun.soldier
        work_id = entry.data.get("workId") or str(entry.data.get("taskId", "")).rpartition("-")[0]
        session = self.sessions.get(self._soldiers.get(work_id, ""))
        if session is None or session.path is not None:
            return None
        converted = await to_transcript_entry(self._bus, self._subject.workflow, entry)
        return SessionEntries(session, [converted], [None]) if converted else None


class SessionFollowerView:
    """Formats new entries for a person, with a heading for each session."""

    def __init__(self, workflow: Workflow) -> None:
        self._workflow = workflow
        self._view = TranscriptView()
        self._shown = ""

    def lines(self, news: SessionEntries) -> Iterator[Text]:
        """Yield the lines of new entries."""
        lines = list(self._view.lines(news.entries))
        if lines and self._shown != news.session.soldier:
            self._shown = news.session.soldier
            yield self._head(news.session)
        yield from lines

    def _head(self, session: RunSession) -> Text:
        workflow = self._workflow
        work = workflow.find_work(session.work_id)
        name = work.definition.name if work else "removed"
        words = f"── {short(workflow, session.work_id)} {name} · {session.soldier} on {session.host} ──"
        return Text(printable(words), style="bold")
