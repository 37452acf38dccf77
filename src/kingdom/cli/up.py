"""`kingdom up`: every role of the court on this machine, under one process."""

import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import structlog
import typer
from prometheus_client import CollectorRegistry
from rich.live import Live

from kingdom import bootstrap
from kingdom.bus.maintenance import serving_metrics
from kingdom.bus.metrics import BacklogMetrics
from kingdom.bus.port import Bus
from kingdom.chronicle.catalogue import chronicle
from kingdom.chronicle.events import InternalEvent, SystemStarted, SystemStopped
from kingdom.cli import exit_code
from kingdom.cli.command import Call, command
from kingdom.cli.running import LOOPBACK, Level, MetricsHost, MetricsPort, refuse_old_store, run_until_stopped
from kingdom.cli.shape import LOG_LINES
from kingdom.cli.status import look_now
from kingdom.cli.up_lines import Line, Lines, to_standard_error
from kingdom.cli.up_view import up_view
from kingdom.clock import utc_now
from kingdom.court.heartbeat import ROLES
from kingdom.court.metrics import CourtMetrics
from kingdom.court.standing import Standing
from kingdom.court.streams import LONE_STREAMS
from kingdom.court.text_logs import SYSTEM, TextLog, path_of, tee
from kingdom.errors import KingdomError
from kingdom.log_output import configure_logs
from kingdom.realm import EXAMPLE, Realm, read_realm
from kingdom.roles import declared
from kingdom.settings import FILE, environment_of_children
from kingdom.supervisor.processes import RoleProcesses, only_one
from kingdom.supervisor.silence import Silence

app = typer.Typer(add_completion=False)
_ACTOR = "system"
_LOOK_SECONDS, _DRAW_SECONDS = 2.0, 0.5
_log = structlog.get_logger("kingdom.cli")


@command(app, "up", answer=LOG_LINES, json_flags=("--json-logs", "--json"))
async def up(
    call: Call,
    *,
    role: Annotated[list[str] | None, typer.Option("--role", help="Only this role; may be repeated.")] = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
    log_level: Level = "info",
) -> int | None:
    """Run every role of the court on this machine until SIGTERM or SIGINT.

    A role that ends is started again, after a pause that grows from a second to a minute, unless its settings are wrong
    from the start; one whose process runs and gives no sign of life is ended first. The first signal lets all
    of them finish what they are at, the second ends them at once. A terminal shows how everything stands; else every
    role's log lines are on standard error.

    Example: kingdom up

    Example: kingdom up --role king --role general --json-logs

    JSON: log lines, one object each with the role that said it, on standard error.
    """
    if strangers := ", ".join(sorted({*(role or ())} - {*ROLES})):
        raise typer.BadParameter(f"there is no role {strangers}; there are: {', '.join(ROLES)}.")
    file = call.settings.file
    if file is None:
        return _offer(call)
    realm = read_realm(file)
    await refuse_old_store(call.settings)
    directory = bootstrap.data_directory_of(call.settings)
    is_screen = call.output.console.is_terminal and not call.output.json
    with only_one(directory):
        lines = Lines(_nobody if is_screen else to_standard_error(json=call.output.json))
        system_log = TextLog(path_of(directory, SYSTEM))
        configure_logs(json=True, level=logging.INFO, also=[tee(system_log, _ACTOR), lines.own])
        async with call.bus(declared(realm)) as bus:
            processes = RoleProcesses(
                role or ROLES, partial(_command, file, log_level), environment_of_children(call.settings), lines.hear
            )
            court, registry = _Court(call, realm, bus, processes, lines), CollectorRegistry()
            backlog = partial(BacklogMetrics(registry).refresh, bootstrap.operations_of(bus), LONE_STREAMS)
            standing = partial(CourtMetrics(registry).refresh, court.look)
            async with serving_metrics(registry, backlog, standing, host=metrics_host, port=metrics_port):
                return await court.run(is_screen=is_screen)


@dataclass(frozen=True, slots=True)
class _Court:
    """Everything that runs while the roles do."""

    call: Call
    realm: Realm
    bus: Bus
    processes: RoleProcesses
    lines: Lines

    async def run(self, *, is_screen: bool) -> int | None:
        """Run until stopped; returns the exit code."""
        beside = [self._watch(), *([self._draw()] if is_screen else [])]
        reason = "an error"
        try:
            cut_off = await run_until_stopped([self.processes], beside)
            reason = "two signals: what was at work was cut off" if cut_off else "a signal"
        finally:
            await self._say_goodbye(reason)
        return exit_code.FAILED if cut_off else None

    async def _watch(self) -> None:
        """Say that everything was started, then look after silent roles for as long as they run."""
        await self.processes.started.wait()
        await self._say(SystemStarted(version=version("kingdom")))
        _log.info("court started", roles=list(self.processes.roles()))
        store = bootstrap.directory_of(self.call.settings.database_url)
        await Silence(self.bus, self.processes, self.realm.chamberlain, store=store).watch()

    async def _say_goodbye(self, reason: str) -> None:
        try:
            await self._say(SystemStopped(reason=reason))
        except KingdomError as error:
            _log.warning("the end could not be logged", error=str(error))

    async def _say(self, event: InternalEvent) -> None:
        async with self.bus.transaction() as transaction:
            await chronicle(transaction, event, _ACTOR)

    async def _draw(self) -> None:
        """Show everything on a terminal, until cancelled."""
        children = self.processes.children.values()
        standing, missing = await self._standing()
        loop = asyncio.get_running_loop()
        next_look = loop.time() + _LOOK_SECONDS
        with Live(console=self.call.output.console, auto_refresh=False) as live:
            try:
                while True:
                    if loop.time() >= next_look:
                        standing, missing = await self._standing()
                        next_look = loop.time() + _LOOK_SECONDS
                    live.update(up_view(children, standing, missing, self.lines.last, utc_now()), refresh=True)
                    await asyncio.sleep(_DRAW_SECONDS)
            finally:
                # What stays on the terminal is how it ended, not how it was.
                live.update(up_view(children, None, "All roles have ended.", self.lines.last, utc_now()), refresh=True)

    async def look(self) -> Standing:
        """Return how the court stands, as soon as every role was started."""
        await self.processes.started.wait()
        running = frozenset(role for role, child in self.processes.children.items() if child.pid)
        return await look_now(self.bus, self.call.settings, self.realm, running)

    async def _standing(self) -> tuple[Standing | None, str]:
        try:
            return await self.look(), ""
        except (KingdomError, OSError) as error:
            return None, f"the store cannot be read: {error}"


def _offer(call: Call) -> int:
    call.output.note(f"There is no {FILE} here. `kingdom init` makes a realm; this is a {FILE} to start from:")
    if not call.output.json:
        typer.echo(EXAMPLE, nl=False)
    return exit_code.USAGE


def _command(file: Path, log_level: str, role: str) -> Sequence[str]:
    words = ("role", role, "--config", str(file), "--log-level", log_level, "--json-logs")
    # What lies in the current directory is no part of the program.
    return (sys.executable, "-P", "-m", "kingdom", *words)


def _nobody(_: Line) -> None:
    """Tell nobody: the screen shows what matters, and the roles write their own logs."""
