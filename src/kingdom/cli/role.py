"""`kingdom role …`: one role of the court in this process."""

import logging
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Annotated, Literal

import structlog
import typer
from prometheus_client import CollectorRegistry

from kingdom import bootstrap
from kingdom.bus.maintenance import serving_metrics
from kingdom.bus.metrics import BacklogMetrics, WorkerMetrics
from kingdom.cli import exit_code
from kingdom.cli.command import Call, command
from kingdom.cli.running import (
    CONNECTIONS,
    LOOPBACK,
    Level,
    MetricsHost,
    MetricsPort,
    refuse_old_store,
    run_until_stopped,
)
from kingdom.cli.shape import LOG_LINES
from kingdom.cli.status import look_now
from kingdom.court.chamberlain.records import CHAMBERLAIN
from kingdom.court.heartbeat import Heart, signs_in_files, signs_in_records
from kingdom.court.live_packages import LivePackages
from kingdom.court.metrics import CourtMetrics
from kingdom.court.streams import LONE_STREAMS
from kingdom.court.text_logs import SYSTEM, TASKS, TextLog, path_of, tee
from kingdom.log_output import configure_logs
from kingdom.realm import read_realm
from kingdom.roles import declared
from kingdom.roles.house import Cast, House

app = typer.Typer(add_completion=False)
RoleName = Literal["sentinel", "king", "general", "soldiers", "envoy", "chamberlain"]
# Who writes the log of assignments too.
_OF_ASSIGNMENTS = frozenset({"king", "general"})
_log = structlog.get_logger("kingdom.cli")


@command(app, "role", answer=LOG_LINES, json_flags=("--json-logs", "--json"))
async def role(
    call: Call,
    name: Annotated[RoleName, typer.Argument(help="Which role this process plays.")],
    *,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
    log_level: Level = "info",
) -> int | None:
    """Play one role of the court until SIGTERM or SIGINT; any number of processes may play the same one.

    The sentinel watches GitHub and Jira, the king decides, general has assignments done, soldiers runs agents, the
    envoy tells people, the chamberlain watches over all of it. The second signal ends it at once.

    Example: kingdom role king --config kingdom.yaml

    JSON: log lines, one object each, on standard error.
    """
    realm = read_realm(call.settings.file)
    level = logging.getLevelNamesMapping()[log_level.upper()]
    directory = bootstrap.data_directory_of(call.settings)
    logs = [TextLog(path_of(directory, SYSTEM))]
    if name in _OF_ASSIGNMENTS:
        logs.append(TextLog(path_of(directory, TASKS)))
    configure_logs(json=call.output.json, level=level, also=[tee(log, name) for log in logs])
    await refuse_old_store(call.settings)
    application, registry = declared(realm), CollectorRegistry()
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(call.bus(application, connections=CONNECTIONS))
        refreshes = [partial(BacklogMetrics(registry).refresh, bootstrap.operations_of(bus), LONE_STREAMS)]
        if name == CHAMBERLAIN:
            look = partial(look_now, bus, call.settings, realm)
            refreshes.append(partial(CourtMetrics(registry).refresh, look))
        await stack.enter_async_context(serving_metrics(registry, *refreshes, host=metrics_host, port=metrics_port))
        house = House(
            bus=bus,
            settings=call.settings,
            realm=realm,
            packages=LivePackages(
                bootstrap.generals_directory_of(call.settings, realm), hears_strangers=realm.sentinel.hears_strangers
            ),
            metrics=WorkerMetrics(registry),
            directory=directory,
            stack=stack,
        )
        if bootstrap.directory_of(call.settings.database_url):
            signs = signs_in_files(directory, name)
        else:
            signs = signs_in_records(lambda: call.bus(application), name)
        cast: Cast = import_module(f"kingdom.roles.{name}").cast(house)
        await stack.enter_async_context(Heart(signs, every=timedelta(seconds=realm.heartbeat_seconds)))
        _log.info("role started", role=name)
        cut_off = await run_until_stopped(cast.parts, cast.beside)
    return exit_code.FAILED if cut_off else None
