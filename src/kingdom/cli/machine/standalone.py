"""Roles outside a court: the workflow engine, a soldier host, and the courier of an application."""

from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from kingdom.bootstrap import courier_of, operations_of
from kingdom.bus.app import Application
from kingdom.bus.maintenance import report_throughput, run_retention, serving_metrics
from kingdom.bus.metrics import BacklogMetrics, CourierMetrics, WorkerMetrics
from kingdom.bus.worker import Worker
from kingdom.bus.worker.worker import Runnable
from kingdom.chronicle.catalog import log_clean_up
from kingdom.cli.framework.command import CommandCall
from kingdom.cli.framework.long_running import CONNECTIONS, refuse_old_store, run_until_stopped
from kingdom.court.chamberlain.retention import store_retention, with_retention
from kingdom.errors import Misconfigured
from kingdom.soldiers.settings import SoldierSettings
from kingdom.workflow.reactions import engine
from kingdom.workflow.streams import ENGINE_STREAMS
from kingdom.workflow.timers import run_timers

_ENGINE = "engine"
_log = structlog.get_logger("kingdom.workflow")


async def run_standalone(
    call: CommandCall,
    host: SoldierSettings | None,
    directory: Path | None,
    metrics_host: str,
    metrics_port: int | None,
    *,
    runs_engine: bool,
) -> bool:
    """Run the engine, a host or both until a signal. Return whether a second signal ended them at once."""
    if host and host.agent == "command":
        raise Misconfigured(
            "`--agent command` needs a program, and options cannot name it: set soldiers.agent and soldiers.command"
            " in kingdom.yaml, and start the host with `kingdom role soldiers`"
        )
    await refuse_old_store(call.settings)
    application, registry = _declare_engine(call), CollectorRegistry()
    async with call.bus(application, connections=CONNECTIONS * (2 if runs_engine and host else 1)) as bus:
        prefix = call.settings.metrics_prefix
        operations, metrics = operations_of(bus), WorkerMetrics(registry, prefix=prefix)
        parts: list[Runnable] = []
        if runs_engine:
            parts.append(Worker(bus, application.dispatcher, ENGINE_STREAMS, metrics=metrics))
        if host:
            # Imported here, because the engine alone does not need it.
            from kingdom.roles.soldiers import soldier_host

            parts.append(soldier_host(bus, call.settings, host, directory, metrics=metrics))
        refresh = partial(BacklogMetrics(registry, prefix=prefix).refresh, operations, ENGINE_STREAMS)
        async with serving_metrics(registry, refresh, host=metrics_host, port=metrics_port):
            background: list[Coroutine[Any, Any, None]] = [report_throughput(bus, metrics.handled)]
            if runs_engine:
                on_removed = partial(log_clean_up, bus, _ENGINE)
                background += [run_timers(bus), run_retention(operations, application.retention, on_removed=on_removed)]
                _log.info("engine started", streams=list(ENGINE_STREAMS), host=host is not None)
            return await run_until_stopped(parts, background)


async def run_courier(call: CommandCall, metrics_host: str, metrics_port: int | None) -> bool:
    """Run the courier of an application until a signal. Return whether a second signal ended it at once."""
    application = call.application()
    if application is None:
        raise Misconfigured("the courier needs an application: name it with --app MODULE:OBJECT, or set KINGDOM_APP")
    await refuse_old_store(call.settings)
    registry, prefix = CollectorRegistry(), call.settings.metrics_prefix
    metrics = CourierMetrics(registry, prefix=prefix)
    async with call.bus(application, connections=CONNECTIONS) as bus:
        courier = courier_of(bus, call.settings)

        async def refresh() -> None:
            metrics.show(sent_events=courier.sent_events, lag=await courier.lag())

        async with serving_metrics(registry, refresh, host=metrics_host, port=metrics_port):
            retention = run_retention(operations_of(bus), application.retention)
            ready = partial(_log.info, "role started", role="courier", streams=list(bus.topology.carried()))
            return await run_until_stopped([courier], [retention], on_ready=ready)


def _declare_engine(call: CommandCall) -> Application:
    """Return the engine as an application, with the retention of the settings file if there is one."""
    application = engine()
    if call.settings.file is None:
        return application
    retention = call.part("chamberlain").chamberlain.retention
    kinds = with_retention(application.kinds, retention)
    return replace(application, kinds=kinds, retention=store_retention(retention))
