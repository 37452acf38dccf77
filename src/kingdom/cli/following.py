"""Following the sessions of a run: what is new in their transcripts, or in the log where those lie elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from kingdom.bootstrap import operations_of
from kingdom.bus.log import LogCursor, LogEntry
from kingdom.bus.port import Bus
from kingdom.cli.sessions import Session, Subject, locate, session_begun, sessions_now
from kingdom.cli.told_entries import told_entry
from kingdom.cli.transcript_view import TranscriptView
from kingdom.cli.workflow_follow import new_entries
from kingdom.cli.workflow_id import short
from kingdom.soldiers.transcript import Entry, read_page, tail_offset
from kingdom.text import printable
from kingdom.workflow.model.workflow import Workflow

# So much of the end of a run's transcripts is shown unless all is asked for.
_TAIL_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class News:
    """Entries of one session, and where in its transcript each ends; what the store tells has no place there."""

    session: Session
    entries: Sequence[Entry]
    ends: Sequence[int | None]


class Following:
    """Reads what is new in the sessions of a run, each time it is asked to."""

    def __init__(self, bus: Bus, subject: Subject) -> None:
        self.sessions: dict[str, Session] = {}
        self._bus = bus
        self._subject = subject
        self._cursor = LogCursor()
        # Who works on a Work according to the log so far.
        self._soldiers: dict[str, str] = {}

    async def look(self) -> list[LogEntry]:
        """Learn of new sessions; return what the log says since the last time."""
        operations = operations_of(self._bus)
        entries, self._cursor = await new_entries(operations, self._subject.workflow.id, self._cursor)
        begun = [session for entry in entries if (session := session_begun(entry))]
        # The log is kept for a shorter time than the run.
        for session in (*begun, *sessions_now(self._subject.workflow)):
            if self._subject.has(session) and session.soldier not in self.sessions:
                await locate(self._bus, session, self._subject.workflow)
                self.sessions[session.soldier] = session
        return entries

    def skip_to(self, offset: int) -> None:
        """Leave out everything before an offset of the newest transcript."""
        here = list(self._transcripts())
        for session, path in here:
            session.offset = path.stat().st_size
        for session, _ in here[-1:]:
            session.offset = offset

    def keep_tail(self) -> Iterator[Session]:
        """Leave out all but the end of the newest transcripts; yields those that are cut."""
        size = _TAIL_BYTES
        for session, path in reversed(list(self._transcripts())):
            session.offset = tail_offset(path, size)
            size = max(size - path.stat().st_size, 0)
            if session.offset:
                yield session

    async def news(self, logged: Sequence[LogEntry]) -> AsyncIterator[News]:
        """Yield what the log says of sessions elsewhere, then what the transcripts here say."""
        for entry in logged:
            if news := await self._logged(entry):
                yield news
        for session in self.sessions.values():
            while session.path and session.path.exists():
                page = await asyncio.to_thread(read_page, session.path, session.offset)
                yield News(session, page.entries, page.ends)
                if page.next_offset == session.offset:
                    break
                session.offset = page.next_offset

    def _transcripts(self) -> Iterator[tuple[Session, Path]]:
        for session in self.sessions.values():
            if session.path and session.path.exists():
                yield session, session.path

    async def _logged(self, entry: LogEntry) -> News | None:
        if begun := session_begun(entry):
            self._soldiers[begun.work_id] = begun.soldier
        work_id = entry.data.get("workId") or str(entry.data.get("taskId", "")).rpartition("-")[0]
        session = self.sessions.get(self._soldiers.get(work_id, ""))
        if session is None or session.path is not None:
            return None
        told = await told_entry(self._bus, self._subject.workflow, entry)
        return News(session, [told], [None]) if told else None


class FollowingView:
    """Tells news to a person, under a line for each session."""

    def __init__(self, workflow: Workflow) -> None:
        self._workflow = workflow
        self._view = TranscriptView()
        self._shown = ""

    def lines(self, news: News) -> Iterator[Text]:
        """Yield what a person cares for."""
        lines = list(self._view.lines(news.entries))
        if lines and self._shown != news.session.soldier:
            self._shown = news.session.soldier
            yield self._head(news.session)
        yield from lines

    def _head(self, session: Session) -> Text:
        workflow = self._workflow
        work = workflow.find_work(session.work_id)
        name = work.definition.name if work else "removed"
        words = f"── {short(workflow, session.work_id)} {name} · {session.soldier} on {session.host} ──"
        return Text(printable(words), style="bold")
