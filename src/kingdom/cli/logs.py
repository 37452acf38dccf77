"""`kingdom logs`: what the agents of a run were asked, said and did, from their transcripts or from the store."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from kingdom.bootstrap import operations_of
from kingdom.bus.log import Cursor, LogEntry
from kingdom.bus.port import Bus
from kingdom.cli.command import Call, command
from kingdom.cli.output import printable
from kingdom.cli.sessions import Session, Subject, find_subject, locate, session_begun, sessions_now
from kingdom.cli.told_entries import told_entry
from kingdom.cli.transcript_view import TranscriptView
from kingdom.cli.workflow_follow import new_entries
from kingdom.cli.workflow_id import short
from kingdom.soldiers.transcript import Entry, read_page, tail_offset
from kingdom.workflow import lifecycle
from kingdom.workflow.reactions import engine

app = typer.Typer(add_completion=False)
_POLL_SECONDS = 0.3
# So much of the end of a run's transcripts is shown unless all is asked for.
_TAIL_BYTES = 256 << 10


@command(app, "logs")
async def logs(
    call: Call,
    subject: Annotated[
        str,
        typer.Argument(
            metavar="RUN|WORK|SOLDIER",
            help="The id of a run, or where that begins or ends; `last` is the newest. A work as last-w2. A soldier.",
        ),
    ],
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until the run has ended.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="From the beginning, however long it is.")] = False,
    since_offset: Annotated[
        int | None,
        typer.Option(min=0, metavar="BYTES", help="Only the newest session, from this offset of its transcript on."),
    ] = None,
) -> None:
    """Show what the agents of a run were asked, what they said and did, and how each turn ended.

    Long transcripts are shown from near their end. Where one lies on another machine, what the store knows is shown.

    Example: kingdom logs last -f

    Example: kingdom logs soldier-1790000000-123456 --since-offset 5120 --json

    JSON: an object {soldier, workId, nextOffset, entry} per line; `--since-offset` goes on at a nextOffset, which is
    null for what comes from the store.
    """
    async with call.bus(engine(), create=False) as bus:
        await watch(
            call, bus, await find_subject(bus, subject), follow=follow, everything=everything, since=since_offset
        )


async def watch(
    call: Call, bus: Bus, subject: Subject, *, follow: bool, everything: bool = False, since: int | None = None
) -> None:
    """Show the sessions of a run; following ends when there will be no more."""
    watching = _Watching(call, bus, subject)
    entries = await watching.look()
    if since is not None:
        watching.skip_to(since)
    elif not everything:
        watching.keep_tail(_TAIL_BYTES)
    while True:
        over = not follow or subject.is_over(await lifecycle.show(bus, subject.workflow.id))
        # What was written before the end was seen is read after it.
        entries += await watching.look()
        await watching.tell(entries)
        if over:
            break
        entries = []
        await asyncio.sleep(_POLL_SECONDS)
    if not watching.sessions:
        call.output.note(f"No agent was started yet for {subject.workflow.id}")


class _Watching:
    """Tells what is new in the sessions of a run, each time it is asked to."""

    def __init__(self, call: Call, bus: Bus, subject: Subject) -> None:
        self.sessions: dict[str, Session] = {}
        self._call = call
        self._bus = bus
        self._subject = subject
        self._cursor = Cursor()
        self._view = TranscriptView()
        self._shown = ""
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

    def keep_tail(self, size: int) -> None:
        """Leave out all but about so many bytes at the end of the newest transcripts."""
        for session, path in reversed(list(self._transcripts())):
            session.offset = tail_offset(path, size)
            size = max(size - path.stat().st_size, 0)
            if session.offset:
                self._call.output.note(f"The first {session.offset} bytes of {session.soldier} are left out: say --all")

    async def tell(self, logged: Sequence[LogEntry]) -> None:
        """Tell what the log says of sessions elsewhere, then what the transcripts here say."""
        for entry in logged:
            await self._tell_logged(entry)
        for session in self.sessions.values():
            await self._tell_transcript(session)

    def _transcripts(self) -> Iterator[tuple[Session, Path]]:
        for session in self.sessions.values():
            if session.path and session.path.exists():
                yield session, session.path

    async def _tell_transcript(self, session: Session) -> None:
        while session.path and session.path.exists():
            page = await asyncio.to_thread(read_page, session.path, session.offset)
            self._show(session, page.entries, page.ends)
            if page.next_offset == session.offset:
                return
            session.offset = page.next_offset

    async def _tell_logged(self, entry: LogEntry) -> None:
        if begun := session_begun(entry):
            self._soldiers[begun.work_id] = begun.soldier
        work_id = entry.data.get("workId") or str(entry.data.get("taskId", "")).rpartition("-")[0]
        session = self.sessions.get(self._soldiers.get(work_id, ""))
        if session is None or session.path is not None:
            return
        if told := await told_entry(self._bus, self._subject.workflow, entry):
            self._show(session, [told], [None])

    def _show(self, session: Session, entries: Sequence[Entry], ends: Sequence[int | None]) -> None:
        output = self._call.output
        if output.json:
            for entry, end in zip(entries, ends, strict=True):
                output.document(
                    {"soldier": session.soldier, "workId": session.work_id, "nextOffset": end, "entry": entry}
                )
            return
        lines = list(self._view.lines(entries))
        if lines and self._shown != session.soldier:
            self._shown = session.soldier
            output.console.print(self._head(session), soft_wrap=True)
            if session.place:
                output.note(f"From the store; the transcript lies on {session.place}")
        for line in lines:
            output.console.print(line, soft_wrap=True)

    def _head(self, session: Session) -> Text:
        workflow = self._subject.workflow
        work = workflow.find_work(session.work_id)
        name = work.definition.name if work else "removed"
        words = f"── {short(workflow, session.work_id)} {name} · {session.soldier} on {session.host} ──"
        return Text(printable(words), style="bold")
