"""`kingdom top`: the court on one live screen."""

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from types import ModuleType

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kingdom.bus.logs import configure_logs
from kingdom.bus.port import Bus
from kingdom.cli.command import Call, command
from kingdom.cli.explain import timeline_of
from kingdom.cli.explain_view import explain_view
from kingdom.cli.following import Following, FollowingView
from kingdom.cli.host_record import host_of
from kingdom.cli.petition import left_outside
from kingdom.cli.running import BY_SIGNAL, tell_nobody
from kingdom.cli.sessions import Subject
from kingdom.cli.status import lookout_of
from kingdom.cli.workflow_left import differences, written_view
from kingdom.cli.workflow_view import tree_view
from kingdom.clock import utc_now
from kingdom.court.standing import Lookout
from kingdom.errors import Misconfigured
from kingdom.roles import declared
from kingdom.sentence import printable
from kingdom.soldiers.settings import SoldierSettings
from kingdom.top.run_views import ReadContent, RunViews
from kingdom.top.store_client import StoreClient
from kingdom.workflow import lifecycle
from kingdom.workflow.model.workflow import Workflow

app = typer.Typer(add_completion=False)
# Generals are files of people, who change them now and then.
_GENERALS_SECONDS = 5.0


@command(app, "top", answer=None)
async def top(call: Call) -> int | None:
    """Show the court on one live screen: runs, queues, questions and health, and act on them by single keys.

    Press ? there for every key. It needs a terminal and the extra `top`: pip install 'kingdom[top]'.

    Example: kingdom top

    JSON: none, this is for people; programs use `kingdom status --json` and `kingdom ps --json`.
    """
    if call.output.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misconfigured(
            "a live screen needs a terminal: use `kingdom status --json` or `kingdom ps --watch` instead"
        )
    screen = _screen()
    # Whatever is logged would be written across the screen.
    configure_logs(json=True, level=logging.ERROR, also=[tell_nobody])
    seen: list[tuple[float, Lookout]] = []

    async def lookout() -> Lookout:
        if not seen or time.monotonic() - seen[0][0] > _GENERALS_SECONDS:
            seen[:] = [(time.monotonic(), await asyncio.to_thread(lookout_of, call.settings, call.realm))]
        return seen[0][1]

    async with call.bus(declared(call.realm), create=False) as bus:
        shown = screen.Top(StoreClient(bus, call.settings.actor, lookout), readers_of(bus, call.realm.soldiers))
        for number in (signal.SIGTERM, signal.SIGHUP):
            # By itself it would leave the terminal as the screen needs it.
            leave = partial(shown.exit, return_code=BY_SIGNAL + number)
            asyncio.get_running_loop().add_signal_handler(number, leave)
        await shown.run_async()
    code: int | None = shown.return_code
    return code


def readers_of(bus: Bus, settings: SoldierSettings) -> RunViews:
    """Return what the screen shows of a run: the very views of the commands."""

    async def show(run_id: str) -> RenderableType:
        run = await lifecycle.show(bus, run_id)
        return tree_view(run, await host_of(bus, run), utc_now())

    async def diff(run_id: str) -> RenderableType:
        found = await differences(bus, settings, await lifecycle.show(bus, run_id))
        parts: list[RenderableType] = []
        for each in found:
            said = "" if each.diff else ": no difference"
            parts.append(Text(printable(f"{each.git_id}, {each.branch} since {each.since[:12]}{said}"), style="bold"))
            parts.append(written_view(each.diff, "diff"))
        return Group(*parts)

    async def explain(about: str) -> RenderableType:
        return explain_view(await timeline_of(bus, about), utc_now())

    async def logs(run_id: str) -> ReadContent:
        return await _transcript(bus, run_id)

    async def outside(run: Workflow) -> Sequence[str]:
        return await left_outside(bus, run)

    return RunViews(show=show, diff=diff, explain=explain, logs=logs, left_outside=outside)


async def _transcript(bus: Bus, run_id: str) -> ReadContent:
    """Return what reads on in the sessions of a run, from near their end."""
    run = await lifecycle.show(bus, run_id)
    following, view = Following(bus, Subject(run)), FollowingView(run)
    waiting = await following.look()
    notes = [
        Text(f"The first {session.offset} bytes of {session.soldier} are left out: kingdom logs {run_id} --all")
        for session in following.keep_tail()
    ]
    if not following.sessions:
        notes.append(Text("No agent was started yet; what it says will stand here.", style="dim"))
    told_places: set[str] = set()

    async def more() -> Sequence[RenderableType]:
        lines: list[RenderableType] = [*notes]
        entries = [*waiting, *await following.look()]
        notes.clear()
        waiting.clear()
        async for news in following.news(entries):
            place = news.session.place
            if place and place not in told_places:
                told_places.add(place)
                lines.append(Text(printable(f"From the store; the transcript lies on {place}"), style="yellow"))
            lines.extend(view.lines(news))
        return lines

    return more


def _screen() -> ModuleType:
    try:
        return import_module("kingdom.top.app")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("textual"):
            raise
        raise Misconfigured("the live screen is an extra: pip install 'kingdom[top]'") from error
