"""`kingdom bus work`: run a worker process."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import structlog
import typer
from prometheus_client import CollectorRegistry

from kingdom.bootstrap import operations_of, require_brokers
from kingdom.bus.app import Application
from kingdom.bus.maintenance import report_throughput, run_retention, serving_metrics
from kingdom.bus.metrics import BacklogMetrics, WorkerMetrics
from kingdom.bus.worker import Worker
from kingdom.chronicle.catalog import log_clean_up
from kingdom.cli.framework import exit_code
from kingdom.cli.framework.application import load_application
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.inputs import duration
from kingdom.cli.framework.json_result import LOG_LINES
from kingdom.cli.framework.long_running import (
    LOOPBACK,
    Level,
    MetricsHost,
    MetricsPort,
    refuse_old_store,
    run_until_stopped,
)
from kingdom.errors import Misconfigured
from kingdom.log_output import configure_logs

app = typer.Typer()
# A worker needs more connections than its handlers use.
_SPARE_CONNECTIONS = 4
_ACTOR = "bus"
_log = structlog.get_logger("kingdom.bus")
_Streams = Annotated[
    list[str] | None,
    typer.Option(help="Only this stream; repeatable. For a family of streams, name the members to handle."),
]
_Concurrency = Annotated[int, typer.Option(min=1, help="How many handlers run at a time.")]
_Batch = Annotated[int, typer.Option(min=1, help="The maximum number of events that the worker claims at once.")]


@command(app, "work", result=LOG_LINES, json_flags=("--json-logs", "--json"))
async def work(
    call: CommandCall,
    name: Annotated[str | None, typer.Argument(metavar="MODULE:OBJECT", help="The Application to run.")] = None,
    *,
    stream: _Streams = None,
    concurrency: _Concurrency = 16,
    batch: _Batch = 200,
    grace: Annotated[str, typer.Option(help="The time that running handlers get to finish.")] = "30s",
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
    log_level: Level = "info",
) -> int | None:
    """Handle the events of an application until SIGTERM or SIGINT.

    After the first signal, running handlers finish, and other claimed events are released without counting an attempt.
    The second signal cancels running handlers and releases their events too; the exit code is then 1.

    Example: kingdom bus work orders:app --metrics-port 9100

    Example: kingdom bus work orders:app --stream orders --concurrency 32 --json-logs

    JSON: log lines, one object each, on standard error.
    """
    configure_logs(json=call.output.json, level=logging.getLevelNamesMapping()[log_level.upper()])
    application = _application(name or call.settings.application)
    streams = _streams(application, stream or ())
    require_brokers(call.settings, application.topology, streams)
    registry, prefix = CollectorRegistry(), call.settings.metrics_prefix
    await refuse_old_store(call.settings)
    # A handler may use its whole lease, so the store aborts idle transactions only after the longest lease.
    idle_limit = max(application.topology.stream(each).lease for each in streams)
    async with call.bus(application, connections=concurrency + _SPARE_CONNECTIONS, idle_limit=idle_limit) as bus:
        worker_metrics = WorkerMetrics(registry, prefix=prefix)
        worker = Worker(
            bus,
            application.dispatcher,
            streams,
            concurrency=concurrency,
            batch=batch,
            grace=duration(grace),
            metrics=worker_metrics,
        )
        refresh = partial(BacklogMetrics(registry, prefix=prefix).refresh, operations_of(bus), streams)
        async with serving_metrics(registry, refresh, host=metrics_host, port=metrics_port):
            on_removed = partial(log_clean_up, bus, _ACTOR)
            retention = run_retention(operations_of(bus), application.retention, on_removed=on_removed)
            background = [retention, report_throughput(bus, worker_metrics.handled)]
            ready = partial(_log.info, "worker started", worker=worker.name, streams=streams)
            cut_off = await run_until_stopped([worker], background, on_ready=ready)
    return exit_code.FAILED if cut_off else None


def _application(name: str | None) -> Application:
    if name is None:
        raise typer.BadParameter("name the application as MODULE:OBJECT, or set KINGDOM_APP.")
    return load_application(name)


def _streams(application: Application, chosen: Sequence[str]) -> list[str]:
    topology = application.topology
    streams = [*dict.fromkeys(chosen)] or [each for each in topology.names() if not topology.stream(each).is_family]
    for each in streams:
        if topology.stream(each).is_family:
            raise Misconfigured(f"{each!r} is a family of streams: name its members with --stream")
    if not streams:
        raise Misconfigured("the application declares only families of streams: name members with --stream")
    return streams
