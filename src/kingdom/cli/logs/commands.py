"""`kingdom logs`: show the transcripts of a run's agents."""

import asyncio
from typing import Annotated

import typer

from kingdom.bus.port import Bus
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import lines
from kingdom.cli.logs.session_view import SessionView, follow_sessions
from kingdom.cli.logs.subjects import find_subject
from kingdom.soldiers.transcripts.run_sessions import LogSubject
from kingdom.soldiers.transcripts.session_follower import SessionEntries
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

    Of long transcripts only the end is shown. A transcript on another machine is read from its copy in the store, which
    lags about a second behind; without a copy, the entries of the log are shown.

    Example: kingdom logs last -f

    Example: kingdom logs soldier-1790000000-123456 --since-offset 5120 --json

    JSON: an object {soldier, workId, nextOffset, entry} per line; `--since-offset` continues at a nextOffset, which is
    null for entries from the log.
    """
    async with call.bus(engine(), create=False) as bus:
        found = await find_subject(bus, subject, call.note_unreadable)
        await watch(call, bus, found, follow=follow, everything=everything, since=since_offset)


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
    follower, printer = follow_sessions(bus, subject), _LogPrinter(call, subject)
    entries = await follower.read_log()
    if since is not None:
        await follower.skip_to(since)
    elif not everything:
        for session in await follower.skip_to_tail():
            call.output.note(f"The first {session.offset} bytes of {session.soldier} are left out: add --all")
    while True:
        over = not follow or subject.is_over(await lifecycle.show(bus, subject.workflow.id))
        # The last entries are written and copied before the run ends, so reading them after this check misses none.
        entries += await follower.read_log()
        async for news in follower.read_new_entries(entries):
            printer.print(news)
        if over:
            break
        entries = []
        await asyncio.sleep(_POLL_SECONDS)
    if not follower.sessions:
        call.output.note(f"No agent has started yet for {subject.workflow.id}.")


class _LogPrinter:
    """Prints new entries, and notes about parts that cannot be shown."""

    def __init__(self, call: CommandCall, subject: LogSubject) -> None:
        self._output = call.output
        self._view = SessionView(subject.workflow)

    def print(self, news: SessionEntries) -> None:
        session, output = news.session, self._output
        for note in news.notes:
            output.note(f"{session.soldier}: {note}")
        if output.json:
            for entry, end in zip(news.entries, news.ends, strict=True):
                output.document(
                    TranscriptLine(soldier=session.soldier, work_id=session.work_id, next_offset=end, entry=entry)
                )
            return
        for line in self._view.lines(news):
            output.console.print(line, soft_wrap=True)
