"""`kingdom demo`: a whole court in a throwaway directory, and a story that is played in it."""

import asyncio
import logging
import shutil
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from kingdom.bus.logs import configure_logs
from kingdom.cli import exit_code
from kingdom.cli.command import storeless_command
from kingdom.cli.demo_stage import Lines, Screen, read_line
from kingdom.cli.demo_view import end_view
from kingdom.cli.output import Output
from kingdom.cli.running import BY_SIGNAL, tell_nobody
from kingdom.cli.shape import one
from kingdom.court.text_logs import SYSTEM, TextLog, path_of, tee
from kingdom.demo.demo_court import open_demo_court
from kingdom.demo.report import DemoReport
from kingdom.demo.scenario import Scenario

app = typer.Typer(add_completion=False)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@storeless_command(app, "demo", answer=one(DemoReport))
async def demo(
    output: Output,
    *,
    fast: Annotated[bool, typer.Option("--fast", help="Without pauses; the question answers itself.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the directory at the end.")] = False,
) -> int | None:
    """See Kingdom work in two minutes: no keys, no network, nothing installed but git.

    A whole court runs in a throwaway directory, with stand-ins for GitHub, Jira and Slack and an agent that follows a
    script. A review is asked for, its agent asks you, then agent and King are killed, and a run goes back to a
    checkpoint. Ctrl-C leaves nothing behind. Exit code 1 means that something was lost, done twice or left undone.

    Example: kingdom demo

    Example: kingdom demo --fast --keep

    JSON: the last line of standard output, {ok, seconds, directory, has_slack, question: {question, answer,
    answered_by}, kills: [{what, pid, back_after_seconds}], checkpoints: [id], resumed_from, assignments: [{task_id,
    general, status, cost_usd}], cost_usd, outside: {reviews, comments, pull_requests, ticket_comments, slack_messages},
    places: [{path, what}], findings: [text]}; directory is null unless it is kept. The story is on standard error.
    """
    heard = _hear_signals()
    directory = _new_directory()
    try:
        report = await _play(output, directory, fast=fast, keep=keep)
    except asyncio.CancelledError:
        if not heard:
            raise
        output.note(f"Stopped. Look into {directory}" if keep else "Stopped. Nothing is left behind.")
        return BY_SIGNAL + heard[0]
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    if output.json:
        output.document(report)
    return None if report.ok else exit_code.FAILED


async def _play(output: Output, directory: Path, *, fast: bool, keep: bool) -> DemoReport:
    """Play the story in a court that ends with it; a person may look around first."""
    system_log = TextLog(path_of(directory / "realm", SYSTEM))
    configure_logs(json=True, level=logging.INFO, also=[tee(system_log, "demo"), tell_nobody])
    is_person = output.console.is_terminal and sys.stdin.isatty() and not output.json
    async with open_demo_court(directory) as court:
        if output.console.is_terminal and not output.json:
            stage: Screen | Lines = Screen(output.console, fast=fast or not is_person)
        else:
            stage = Lines(sys.stderr if output.json else sys.stdout)
        with stage:
            report = await Scenario(court, stage, person=court.settings.actor.partition("@")[0]).run()
        looks_around = is_person and not fast and not keep
        if not output.json:
            output.console.print(end_view(report, directory if keep or looks_around else None))
        if looks_around:
            await read_line("\nEverything is there, and runs, until you press Enter. ", None)
    return report if keep else replace(report, directory=None)


def _new_directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="kingdom-demo-")).resolve()


def _hear_signals() -> list[int]:
    """Have this task cancelled by the first signal; who ends is not to be disturbed by others. Returns what came."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    heard: list[int] = []

    def stop(number: int) -> None:
        if task and not heard:
            task.cancel()
        heard.append(number)

    for each in _SIGNALS:
        loop.add_signal_handler(each, stop, each)
    return heard
