"""`kingdom top`: the court on one live screen."""

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kingdom.actions.hosts import host_of
from kingdom.actions.petitions import irreversible_effects
from kingdom.actions.status import status_sources_of
from kingdom.bus.port import Bus
from kingdom.cli.explain.commands import timeline_of
from kingdom.cli.explain.view import explain_view
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.long_running import BY_SIGNAL, drop_log_line
from kingdom.cli.logs.session_view import SessionView, follow_sessions
from kingdom.cli.workflow.results import agent_text_view, describe_diff, differences
from kingdom.cli.workflow.view import tree_view
from kingdom.clock import utc_now
from kingdom.court.status import StatusSources
from kingdom.errors import Misconfigured
from kingdom.log_output import configure_logs
from kingdom.roles import declare_application
from kingdom.soldiers.settings import SoldierSettings
from kingdom.soldiers.transcripts.run_sessions import LogSubject
from kingdom.text import printable
from kingdom.top.run_views import ReadContent, RunViews
from kingdom.top.store_client import StoreClient
from kingdom.workflow import lifecycle
from kingdom.workflow.model.run.workflow import Workflow

if TYPE_CHECKING:
    from kingdom.top.app import Top

app = typer.Typer(add_completion=False)
# The Generals are read again after this time, because people edit them.
_GENERALS_SECONDS = 5.0


@command(app, "top", result=None)
async def top(call: CommandCall) -> int | None:
    """Watch the court on a live screen: runs, queues, questions and health, and act on them with single keys.

    Press ? on the screen to see every key. The screen needs a terminal and the extra `top`: pip install 'kingdom[top]'.

    Example: kingdom top

    JSON: none; programs use `kingdom status --json` and `kingdom ps --json`.
    """
    if call.output.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misconfigured(
            "a live screen needs a terminal: use `kingdom status --json` or `kingdom ps --watch` instead"
        )
    screen = _load_screen()
    # Log lines would be written across the screen.
    configure_logs(json=True, level=logging.ERROR, also=[drop_log_line])
    seen: list[tuple[float, StatusSources]] = []

    async def status_sources() -> StatusSources:
        if not seen or time.monotonic() - seen[0][0] > _GENERALS_SECONDS:
            seen[:] = [(time.monotonic(), await asyncio.to_thread(status_sources_of, call.settings, call.realm))]
        return seen[0][1]

    async with call.bus(declare_application(call.realm), create=False) as bus:
        shown = screen(
            StoreClient(bus, call.settings.actor, status_sources),
            run_views_of(bus, call.realm.soldiers, status_sources),
        )
        for number in (signal.SIGTERM, signal.SIGHUP):
            # An unhandled signal would leave the terminal in full-screen mode.
            leave = partial(shown.exit, return_code=BY_SIGNAL + number)
            asyncio.get_running_loop().add_signal_handler(number, leave)
        await shown.run_async()
    return shown.return_code


def run_views_of(bus: Bus, settings: SoldierSettings, sources: Callable[[], Awaitable[StatusSources]]) -> RunViews:
    """Return the views of a run for the screen. They show the same as the commands."""

    async def show(run_id: str) -> RenderableType:
        run = await lifecycle.show(bus, run_id)
        return tree_view(run, await host_of(bus, run), utc_now())

    async def diff(run_id: str) -> RenderableType:
        found = await differences(bus, settings, await lifecycle.show(bus, run_id))
        parts: list[RenderableType] = []
        for each in found:
            parts.append(Text(printable(describe_diff(each)), style="bold"))
            parts.append(agent_text_view(each.diff, "diff"))
        return Group(*parts)

    async def explain(about: str) -> RenderableType:
        policies = (await sources()).king.follow_policy
        return explain_view(await timeline_of(bus, about, policies), utc_now())

    async def logs(run_id: str) -> ReadContent:
        return await _transcript(bus, run_id)

    async def outside(run: Workflow) -> Sequence[str]:
        return await irreversible_effects(bus, run)

    return RunViews(show=show, diff=diff, explain=explain, logs=logs, irreversible_effects=outside)


async def _transcript(bus: Bus, run_id: str) -> ReadContent:
    """Return a function that reads new lines of a run's sessions. Of a long transcript only the end is read."""
    run = await lifecycle.show(bus, run_id)
    follower, view = follow_sessions(bus, LogSubject(run)), SessionView(run)
    waiting = await follower.read_log()
    notes = [
        Text(f"The first {session.offset} bytes of {session.soldier} are left out: kingdom logs {run_id} --all")
        for session in await follower.skip_to_tail()
    ]
    if not follower.sessions:
        notes.append(Text("No agent has started yet; its messages will appear here.", style="dim"))

    async def more() -> Sequence[RenderableType]:
        lines: list[RenderableType] = [*notes]
        entries = [*waiting, *await follower.read_log()]
        notes.clear()
        waiting.clear()
        async for news in follower.read_new_entries(entries):
            lines.extend(Text(printable(f"{news.session.soldier}: {note}"), style="yellow") for note in news.notes)
            lines.extend(view.lines(news))
        return lines

    return more


def _load_screen() -> "type[Top]":
    try:
        from kingdom.top.app import Top
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("textual"):
            raise
        raise Misconfigured("the live screen is an extra: pip install 'kingdom[top]'") from error
    return Top
