"""`kingdom demo`: run a whole court in a temporary directory, and run a scenario in it."""

import asyncio
import logging
import shutil
import sys
import tempfile
import webbrowser
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from kingdom.cli.demo.display import DemoLines, DemoScreen, read_line
from kingdom.cli.demo.view import end_view
from kingdom.cli.demo.web_pages import serve_pages
from kingdom.cli.framework import exit_code
from kingdom.cli.framework.command import storeless_command
from kingdom.cli.framework.json_result import one
from kingdom.cli.framework.long_running import BY_SIGNAL, cancel_on_signal, drop_log_line
from kingdom.cli.framework.output import CommandOutput
from kingdom.court.text_logs import SYSTEM, TextLog, log_path, tee
from kingdom.demo.demo_court import open_demo_court
from kingdom.demo.report import DemoReport
from kingdom.demo.scenario import Scenario
from kingdom.log_output import configure_logs

app = typer.Typer(add_completion=False)
# After this time, the demo begins even if the person has not pressed Enter.
_OPEN_SECONDS = 60.0


@storeless_command(app, "demo", result=one(DemoReport))
async def demo(
    output: CommandOutput,
    *,
    fast: Annotated[
        bool, typer.Option("--fast", help="Run without pauses, and answer the question automatically.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the directory at the end.")] = False,
    web: Annotated[bool, typer.Option("--web", help="Serve the web pages, and print a link that opens them.")] = False,
) -> int | None:
    """See Kingdom work in two minutes: no keys, no network, nothing installed but git.

    A whole court runs in a temporary directory, with stand-ins for GitHub, Jira and Slack and an agent that follows a
    script. A review is requested, its agent asks you a question, the agent and the King are killed, and a run rolls
    back to a checkpoint. Ctrl-C leaves nothing behind. Exit code 1 means that something was lost, repeated or not done.

    Example: kingdom demo

    Example: kingdom demo --web

    Example: kingdom demo --fast --keep

    JSON: the last line of standard output, {ok, seconds, directory, has_slack, question: {question, answer,
    answered_by}, kills: [{what, pid, back_after_seconds}], checkpoints: [id], resumed_from, assignments: [{task_id,
    general, status, cost_usd}], cost_usd, outside: {reviews, comments, pull_requests, ticket_comments, slack_messages},
    places: [{path, what}], findings: [text]}; directory is null unless it is kept. The narration is on standard error.
    """
    received = cancel_on_signal()
    directory = _new_directory()
    output.note(f"The files of the demo are in {directory}{'' if keep else ' until it ends; with --keep they stay'}.")
    try:
        report = await _run_demo(output, directory, fast=fast, keep=keep, web=web)
    except asyncio.CancelledError:
        if not received:
            raise
        output.note(f"Stopped. Look into {directory}" if keep else "Stopped. Nothing is left behind.")
        return BY_SIGNAL + received[0]
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    if output.json:
        output.document(report)
    return None if report.ok else exit_code.FAILED


async def _run_demo(output: CommandOutput, directory: Path, *, fast: bool, keep: bool, web: bool) -> DemoReport:
    """Run the scenario in a new court. At the end, a person can look around before the court stops."""
    system_log = TextLog(log_path(directory / "realm", SYSTEM))
    configure_logs(json=True, level=logging.INFO, also=[tee(system_log, "demo"), drop_log_line])
    has_person = output.console.is_terminal and sys.stdin.isatty() and not output.json
    async with AsyncExitStack() as stack:
        court = await stack.enter_async_context(open_demo_court(directory))
        person = court.settings.actor.partition("@")[0]
        if web:
            link = await stack.enter_async_context(serve_pages(court, person))
            await _show_link(output, link, waits=has_person and not fast)
        if output.console.is_terminal and not output.json:
            display: DemoScreen | DemoLines = DemoScreen(output.console, fast=fast or not has_person)
        else:
            display = DemoLines(sys.stderr if output.json else sys.stdout)
        with display:
            report = await Scenario(court, display, person=person).run()
        waits_for_enter = has_person and not fast and not keep
        if not output.json:
            output.console.print(end_view(report, directory if keep or waits_for_enter else None))
        if waits_for_enter:
            await read_line("\nEverything keeps running until you press Enter. ", None)
    return report if keep else replace(report, directory=None)


async def _show_link(output: CommandOutput, link: str, *, waits: bool) -> None:
    """Show the link to the pages. A person gets time to open it before the scenario begins."""
    output.note(f"Watch in a browser, signed in: {link}")
    if waits:
        webbrowser.open(link)
        with suppress(TimeoutError):
            await read_line("Press Enter when you see the page. ", _OPEN_SECONDS)


def _new_directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="kingdom-demo-")).resolve()
