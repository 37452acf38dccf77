"""`kingdom role …`: one role in this process."""

import logging
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import structlog
import typer
from prometheus_client import CollectorRegistry

from kingdom import bootstrap
from kingdom.actions.status import read_current_status
from kingdom.bus.maintenance import report_throughput, serving_metrics
from kingdom.bus.metrics import BacklogMetrics, WorkerMetrics
from kingdom.cli.framework import exit_code
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import LOG_LINES
from kingdom.cli.framework.long_running import (
    CONNECTIONS,
    LOOPBACK,
    Level,
    MetricsHost,
    MetricsPort,
    refuse_old_store,
    run_until_stopped,
)
from kingdom.cli.machine.standalone import run_courier, run_standalone
from kingdom.court.chamberlain.records import CHAMBERLAIN
from kingdom.court.heartbeat import HeartbeatThread, heartbeats_in_files, heartbeats_in_records
from kingdom.court.live_packages import LivePackages
from kingdom.court.metrics import CourtMetrics
from kingdom.court.streams import SINGLE_STREAMS
from kingdom.court.text_logs import SYSTEM, TASKS, TextLog, log_path, tee
from kingdom.errors import Misconfigured
from kingdom.log_output import configure_logs
from kingdom.realm import read_realm
from kingdom.roles import declare_application
from kingdom.roles.context import RoleComponents, RoleContext
from kingdom.roles.process_register import Registration, stop_reason
from kingdom.soldiers.sandbox.sandbox import SandboxProfile
from kingdom.soldiers.settings import AgentName, SoldierSettings

app = typer.Typer(add_completion=False)
CourtRole = Literal["sentinel", "king", "general", "soldiers", "envoy", "chamberlain", "web"]
RoleName = Literal[CourtRole, "engine", "host", "courier"]
# All log lines of these roles also go to `logs/tasks.log`; of other roles only those about events and assignments.
_ASSIGNMENT_ROLES = frozenset({"king", "general"})
_log = structlog.get_logger("kingdom.cli")

_WithHost = Annotated[bool, typer.Option("--host", help="engine: run agents too, in the same process.")]
_HostName = Annotated[
    str, typer.Option("--name", help="host: its name; by default the name of this machine.", show_default=False)
]
_Slots = Annotated[int | None, typer.Option(min=1, help="host: how many agents run at a time; by default 3.")]
_Directory = Annotated[
    Path | None,
    typer.Option(
        help="host: the folder of checkouts and transcripts; by default soldiers/NAME in the store of files, or in the"
        " current directory if the store is a database."
    ),
]
_Agent = Annotated[
    AgentName | None,
    typer.Option(help="host: which agent it runs; by default scripted. The agent `command` needs kingdom.yaml."),
]
_Sandbox = Annotated[
    SandboxProfile | None,
    typer.Option(help="host: what agents may see: strict (default), dev (with the network) or off."),
]


@command(app, "role", result=LOG_LINES, json_flags=("--json-logs", "--json"))
async def role(  # noqa: PLR0913 - one parameter per option
    call: CommandCall,
    name: Annotated[RoleName, typer.Argument(help="The role that this process runs.")],
    *,
    with_host: _WithHost = False,
    host_name: _HostName = "",
    slots: _Slots = None,
    directory: _Directory = None,
    agent: _Agent = None,
    sandbox: _Sandbox = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
    log_level: Level = "info",
) -> int | None:
    """Run one role until SIGTERM or SIGINT; any number of processes can run the same role.

    `sentinel` watches GitHub and Jira, `king` decides, `general` carries out assignments, `soldiers` runs agents,
    `envoy` sends messages to people and receives their answers, `chamberlain` checks heartbeats, health and budget and
    removes old data, and `web` serves the pages and the HTTP API. These roles follow kingdom.yaml.

    `engine` and `host` run workflows without a court. The engine moves every run to its next step and watches the
    hosts; a host runs agents; `engine --host` does both. They follow the options marked `host:`. Of kingdom.yaml they
    use only the store and its retention.

    `courier` sends the events of streams with the transport kafka to their topics. It follows the application in
    KINGDOM_APP and the variables KINGDOM_KAFKA_*. If several couriers run, one sends and the others wait to take over.

    When a host stops, its agents end. Their sessions continue when a host with the same name starts. If none starts for
    half a minute, a run continues on another host, provided that its repositories have a checkpoint remote.

    A second signal ends the process at once; the exit code is then 1.

    Example: kingdom role king --config kingdom.yaml

    Example: kingdom role engine --host

    Example: kingdom role host --name box --slots 4

    Example: kingdom role courier

    JSON: log lines, one object each, on standard error.
    """
    options = {"name": host_name or None, "slots": slots, "agent": agent, "sandbox": sandbox}
    given = {key: value for key, value in options.items() if value is not None}
    level = logging.getLevelNamesMapping()[log_level.upper()]
    cut_off = await _run_role(call, name, given, directory, metrics_host, metrics_port, level, with_host=with_host)
    return exit_code.FAILED if cut_off else None


async def _run_role(
    call: CommandCall,
    name: RoleName,
    given: dict[str, Any],
    directory: Path | None,
    metrics_host: str,
    metrics_port: int | None,
    level: int,
    *,
    with_host: bool,
) -> bool:
    match name:
        case "engine" if (given or directory) and not with_host:
            raise Misconfigured(
                "the engine runs no agents, so it takes no options about a host: add --host, or start a host with"
                " `kingdom role host`"
            )
        case "engine" | "host":
            host = SoldierSettings(**given) if with_host or name == "host" else None
            runs_engine = name == "engine"
            configure_logs(json=call.output.json, level=level)
            return await run_standalone(call, host, directory, metrics_host, metrics_port, runs_engine=runs_engine)
        case _ if given or directory or with_host:
            raise Misconfigured(
                f"the role {name} takes no options about a host: set them under `soldiers:` in kingdom.yaml"
            )
        case "courier":
            configure_logs(json=call.output.json, level=level)
            return await run_courier(call, metrics_host, metrics_port)
        case _:
            return await run_court_role(call, name, level, metrics_host, metrics_port)


async def run_court_role(
    call: CommandCall, name: CourtRole, level: int, metrics_host: str, metrics_port: int | None
) -> bool:
    """Run a role of the court until a signal. Return whether a second signal ended it at once."""
    realm = read_realm(call.settings.file)
    directory = bootstrap.data_directory_of(call.settings)
    system, tasks = (TextLog(log_path(directory, each)) for each in (SYSTEM, TASKS))
    tees = [tee(system, name), tee(tasks, name, only_tasks=name not in _ASSIGNMENT_ROLES)]
    configure_logs(json=call.output.json, level=level, also=tees)
    await refuse_old_store(call.settings)
    application, registry = declare_application(realm), CollectorRegistry()
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(call.bus(application, connections=CONNECTIONS))
        backlog = BacklogMetrics(registry, prefix=call.settings.metrics_prefix)
        refreshes = [partial(backlog.refresh, bootstrap.operations_of(bus), SINGLE_STREAMS)]
        if name == CHAMBERLAIN:
            read_status = partial(read_current_status, bus, call.settings, realm)
            refreshes.append(partial(CourtMetrics(registry).refresh, read_status))
        await stack.enter_async_context(serving_metrics(registry, *refreshes, host=metrics_host, port=metrics_port))
        context = RoleContext(
            bus=bus,
            settings=call.settings,
            realm=realm,
            packages=LivePackages(
                bootstrap.generals_directory_of(call.settings, realm),
                accepts_strangers=realm.sentinel.accepts_strangers,
            ),
            metrics=WorkerMetrics(registry, prefix=call.settings.metrics_prefix),
            directory=directory,
            stack=stack,
        )
        components = _components_of(name, context, registry)
        if bootstrap.directory_of(call.settings.database_url):
            heartbeats = heartbeats_in_files(directory, name, components.members)
        else:
            heartbeats = heartbeats_in_records(lambda: call.bus(application), name, components.members)
        await stack.enter_async_context(HeartbeatThread(heartbeats, every=timedelta(seconds=realm.heartbeat_seconds)))
        silence_max = timedelta(seconds=realm.chamberlain.heartbeat.threshold_seconds)
        registration = Registration(bus, name, silence_max=silence_max)
        await registration.enter()
        ready = partial(_log.info, "role started", role=name)
        background = [*components.background, report_throughput(bus, context.metrics.handled)]
        cut_off = await run_until_stopped(components.runnables, background, on_ready=ready)
        # After an error the role stays registered, so that its next process logs a restart.
        await registration.leave(stop_reason(cut_off=cut_off))
        return cut_off


def _components_of(name: CourtRole, context: RoleContext, registry: CollectorRegistry) -> RoleComponents:
    """Import only the module of this role, and return what the role runs."""
    match name:
        case "sentinel":
            from kingdom.roles import sentinel

            return sentinel.build(context)
        case "king":
            from kingdom.roles import king

            return king.build(context)
        case "general":
            from kingdom.roles import general

            return general.build(context)
        case "soldiers":
            from kingdom.roles import soldiers

            return soldiers.build(context)
        case "envoy":
            from kingdom.roles import envoy

            return envoy.build(context)
        case "chamberlain":
            from kingdom.roles import chamberlain

            return chamberlain.build(context)
        case "web":
            from kingdom.web import role as web

            return web.build(context, registry)
