"""`kingdom logs`: what the agents of a run were asked, said and did, from their transcripts or from the store."""

import asyncio
from typing import Annotated

import msgspec
import typer

from kingdom.bus.port import Bus
from kingdom.cli.logs.session_follower import SessionEntries, SessionFollower, SessionFollowerView
from kingdom.cli.logs.sessions import Subject, find_subject
from kingdom.cli.shared.command import CommandCall, command
from kingdom.cli.shared.json_result import lines
from kingdom.soldiers.transcript import Entry
from kingdom.workflow import lifecycle
from kingdom.workflow.reactions import engine

app = typer.Typer(add_completion=False)
_POLL_SECONDS = 0.3


class TranscriptLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An entry of a transcript, whose it is, and where the next one stands; what the store tells has no offset."""

    soldier: str
    work_id: str
    next_offset: int | None
    entry: Entry


@command(app, "logs", result=lines(TranscriptLine))
async def logs(
    call: CommandCall,
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
    call: CommandCall, bus: Bus, subject: Subject, *, follow: bool, everything: bool = False, since: int | None = None
) -> None:
    """Show the sessions of a run; following ends when there will be no more."""
    following, telling = SessionFollower(bus, subject), _LogPrinter(call, subject)
    entries = await following.look()
    if since is not None:
        following.skip_to(since)
    elif not everything:
        for session in following.keep_tail():
            call.output.note(f"The first {session.offset} bytes of {session.soldier} are left out: say --all")
    while True:
        over = not follow or subject.is_over(await lifecycle.show(bus, subject.workflow.id))
        # What was written before the end was seen is read after it.
        entries += await following.look()
        async for news in following.news(entries):
            telling.tell(news)
        if over:
            break
        entries = []
        await asyncio.sleep(_POLL_SECONDS)
    if not following.sessions:
        call.output.note(f"No agent was started yet for {subject.workflow.id}")


class _LogPrinter:
    """Tells what is new to a person or a program; says once of each session where it lies, if that is elsewhere."""

    def __init__(self, call: CommandCall, subject: Subject) -> None:
        self._output = call.output
        self._view = SessionFollowerView(subject.workflow)
        self._places: set[str] = set()

    def tell(self, news: SessionEntries) -> None:
        session, output = news.session, self._output
        if output.json:
            for entry, end in zip(news.entries, news.ends, strict=True):
                output.document(
                    TranscriptLine(soldier=session.soldier, work_id=session.work_id, next_offset=end, entry=entry)
                )
            return
        lines = list(self._view.lines(news))
        if lines and session.place and session.soldier not in self._places:
            self._places.add(session.soldier)
            output.note(f"From the store; the transcript lies on {session.place}")
        for line in lines:
            output.console.print(line, soft_wrap=True)
