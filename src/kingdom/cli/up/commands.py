"""`kingdom up`: run every role of the court on this machine under one process."""

import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated

import structlog
import typer
from prometheus_client import CollectorRegistry
from rich.live import Live

from kingdom import bootstrap
from kingdom.actions.status import read_current_status
from kingdom.bus.maintenance import serving_metrics
from kingdom.bus.metrics import BacklogMetrics
from kingdom.bus.port import Bus
from kingdom.cli.framework import exit_code
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import LOG_LINES
from kingdom.cli.framework.long_running import (
    LOOPBACK,
    Level,
    MetricsHost,
    MetricsPort,
    refuse_old_store,
    run_until_stopped,
)
from kingdom.cli.up.log_lines import RoleLog, RoleLogLine, write_to_stderr
from kingdom.cli.up.view import up_view
from kingdom.clock import utc_now
from kingdom.court.heartbeat import ROLES, WEB
from kingdom.court.metrics import CourtMetrics
from kingdom.court.status import CourtStatus
from kingdom.court.streams import SINGLE_STREAMS
from kingdom.court.text_logs import SYSTEM, TextLog, log_path, tee
from kingdom.errors import KingdomError
from kingdom.log_output import configure_logs
from kingdom.realm import EXAMPLE, Realm, read_realm
from kingdom.roles import declare_application
from kingdom.roles.process_register import SUPERVISOR, Registration, stop_reason
from kingdom.settings import FILE, environment_of_children
from kingdom.supervisor.processes import RoleProcesses, hold_realm
from kingdom.supervisor.silent_roles import SilentRoleRestarter

app = typer.Typer(add_completion=False)
_ACTOR = "system"
_STATUS_SECONDS, _DRAW_SECONDS = 2.0, 0.5
_log = structlog.get_logger("kingdom.cli")


@command(app, "up", result=LOG_LINES, json_flags=("--json-logs", "--json"))
async def up(
    call: CommandCall,
    *,
    role: Annotated[list[str] | None, typer.Option("--role", help="Only this role; repeatable.")] = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
    log_level: Level = "info",
) -> int | None:
    """Run every role of the court on this machine until SIGTERM or SIGINT.

    A role that ends is restarted after a pause, which grows from a second to a minute; it is not restarted if its
    settings are invalid at the start. A role that sends no heartbeats is ended and restarted. The first signal lets all
    roles finish their current work, the second ends them at once. A terminal shows the state of everything; otherwise
    the log lines of every role are on standard error.

    Example: kingdom up

    Example: kingdom up --role king --role general --json-logs

    JSON: log lines, one object each with its role, on standard error.
    """
    if unknown := ", ".join(sorted({*(role or ())} - {*ROLES, WEB})):
        raise typer.BadParameter(f"there is no role {unknown}; there are: {', '.join((*ROLES, WEB))}.")
    file = call.settings.file
    if file is None:
        return _print_example(call)
    realm = read_realm(file)
    await refuse_old_store(call.settings)
    directory = bootstrap.create_data_directory(call.settings)
    is_screen = call.output.console.is_terminal and not call.output.json
    with hold_realm(directory):
        lines = RoleLog(_discard if is_screen else write_to_stderr(json=call.output.json))
        system_log = TextLog(log_path(directory, SYSTEM))
        configure_logs(json=True, level=logging.INFO, also=[tee(system_log, _ACTOR), lines.process_own_event])
        async with call.bus(declare_application(realm)) as bus:
            processes = RoleProcesses(
                role or (ROLES if realm.web_settings is None else (*ROLES, WEB)),
                partial(_command, file, log_level),
                environment_of_children(call.settings),
                lines.add_role_output,
            )
            silence_max = timedelta(seconds=realm.chamberlain.heartbeat.threshold_seconds)
            registration = Registration(bus, SUPERVISOR, silence_max=silence_max)
            court, registry = _RunningCourt(call, realm, bus, processes, lines, registration), CollectorRegistry()
            metrics = BacklogMetrics(registry, prefix=call.settings.metrics_prefix)
            backlog = partial(metrics.refresh, bootstrap.operations_of(bus), SINGLE_STREAMS)
            court_status = partial(CourtMetrics(registry).refresh, court.read_status)
            async with serving_metrics(registry, backlog, court_status, host=metrics_host, port=metrics_port):
                return await court.run(is_screen=is_screen)


@dataclass(frozen=True, slots=True)
class _RunningCourt:
    """The running roles, the task that restarts silent roles, and the screen."""

    call: CommandCall
    realm: Realm
    bus: Bus
    processes: RoleProcesses
    lines: RoleLog
    registration: Registration

    async def run(self, *, is_screen: bool) -> int | None:
        """Run until stopped, and return the exit code."""
        background = [self._watch(), *([self._draw()] if is_screen else [])]
        reason = "an error"
        await self.registration.enter()
        try:
            cut_off = await run_until_stopped([self.processes], background)
            reason = stop_reason(cut_off=cut_off)
        finally:
            await self.registration.leave(reason)
        return exit_code.FAILED if cut_off else None

    async def _watch(self) -> None:
        """Log the start, then restart silent roles until cancelled."""
        await self.processes.started.wait()
        await self.registration.log_start()
        _log.info("court started", roles=list(self.processes.roles()))
        store = bootstrap.directory_of(self.call.settings.database_url)
        await SilentRoleRestarter(self.bus, self.processes, self.realm.chamberlain, store=store).watch()

    async def _draw(self) -> None:
        """Draw the screen until cancelled."""
        children = self.processes.children.values()
        court_status, missing = await self._court_status()
        loop = asyncio.get_running_loop()
        next_status_at = loop.time() + _STATUS_SECONDS
        with Live(console=self.call.output.console, auto_refresh=False) as live:
            try:
                while True:
                    if loop.time() >= next_status_at:
                        court_status, missing = await self._court_status()
                        next_status_at = loop.time() + _STATUS_SECONDS
                    live.update(up_view(children, court_status, missing, self.lines.last, utc_now()), refresh=True)
                    await asyncio.sleep(_DRAW_SECONDS)
            finally:
                # The last screen shows that all roles have ended.
                live.update(up_view(children, None, "All roles have ended.", self.lines.last, utc_now()), refresh=True)

    async def read_status(self) -> CourtStatus:
        """Return the state of the court, once every role has started."""
        await self.processes.started.wait()
        running = frozenset(role for role, child in self.processes.children.items() if child.pid)
        return await read_current_status(self.bus, self.call.settings, self.realm, running)

    async def _court_status(self) -> tuple[CourtStatus | None, str]:
        try:
            return await self.read_status(), ""
        except (KingdomError, OSError) as error:
            return None, f"the store cannot be read: {error}"


def _print_example(call: CommandCall) -> int:
    call.output.note(f"There is no {FILE} here. `kingdom init` creates a realm; this is an example of a {FILE}:")
    if not call.output.json:
        typer.echo(EXAMPLE, nl=False)
    return exit_code.USAGE


def _command(file: Path, log_level: str, role: str) -> Sequence[str]:
    words = ("role", role, "--config", str(file), "--log-level", log_level, "--json-logs")
    # -P: modules in the current directory must not be imported.
    return (sys.executable, "-P", "-m", "kingdom", *words)


def _discard(_: RoleLogLine) -> None:
    """Discard a line. The screen shows warnings and errors, and each role writes its lines to the log files itself."""
