"""`kingdom logs`: show the transcripts of a run's agents."""

import asyncio
from typing import Annotated

import typer

from kingdom.bus.port import Bus
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import lines
from kingdom.cli.logs.session_follower import SessionEntries, SessionFollower, SessionFollowerView
from kingdom.cli.logs.sessions import LogSubject, find_subject
from kingdom.views.transcripts import TranscriptLine
from kingdom.workflow import lifecycle
from kingdom.workflow.reactions import engine

app = typer.Typer(add_completion=False)
_POLL_SECONDS = 0.3


@command(app, "logs", result=lines(TranscriptLine))
async def logs(
    call: CommandCall,
    subject: Annotated[
        str,
        typer.Argument(
            metavar="RUN|WORK|SOLDIER",
            help="The id of a run, its beginning or end, or `last`; a work such as last-w2; or a soldier.",
        ),
    ],
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more until the run ends.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show everything from the beginning.")] = False,
    since_offset: Annotated[
        int | None,
        typer.Option(min=0, metavar="BYTES", help="Only the newest session, from this offset in its transcript."),
    ] = None,
) -> None:
    """Show what the agents of a run were asked, said and did, and how each turn ended.

    Of long transcripts only the end is shown. For a transcript on another machine, the entries in the store are shown.

    Example: kingdom logs last -f

    Example: kingdom logs soldier-1790000000-123456 --since-offset 5120 --json

    JSON: an object {soldier, workId, nextOffset, entry} per line; `--since-offset` continues at a nextOffset, which is
    null for entries from the store.
    """
    async with call.bus(engine(), create=False) as bus:
        await watch(
            call, bus, await find_subject(bus, subject), follow=follow, everything=everything, since=since_offset
        )


async def watch(
    call: CommandCall,
    bus: Bus,
    subject: LogSubject,
    *,
    follow: bool,
    everything: bool = False,
    since: int | None = None,
) -> None:
    """Print the sessions of a run. With `follow`, continue until there will be no more entries."""
    follower, printer = SessionFollower(bus, subject), _LogPrinter(call, subject)
    entries = await follower.look()
    if since is not None:
        follower.skip_to(since)
    elif not everything:
        for session in follower.skip_to_tail():
            call.output.note(f"The first {session.offset} bytes of {session.soldier} are left out: add --all")
    while True:
        over = not follow or subject.is_over(await lifecycle.show(bus, subject.workflow.id))
        # The last entries are written before the run ends, so reading them after this check misses none.
        entries += await follower.look()
        async for news in follower.read_new_entries(entries):
            printer.print(news)
        if over:
            break
        entries = []
        await asyncio.sleep(_POLL_SECONDS)
    if not follower.sessions:
        call.output.note(f"No agent has started yet for {subject.workflow.id}.")


class _LogPrinter:
    """Prints new entries. For a session on another machine, it also prints once where the transcript is."""

    def __init__(self, call: CommandCall, subject: LogSubject) -> None:
        self._output = call.output
        self._view = SessionFollowerView(subject.workflow)
        self._places: set[str] = set()

    def print(self, news: SessionEntries) -> None:
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
            output.note(f"From the store; the transcript is on {session.place}")
        for line in lines:
            output.console.print(line, soft_wrap=True)
