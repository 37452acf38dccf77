"""`kingdom engine`: the process that takes every run its next step."""

import logging
from functools import partial
from typing import Annotated

import structlog
import typer
from prometheus_client import CollectorRegistry

from kingdom.bootstrap import operations_of
from kingdom.bus.maintenance import run_retention, serving_metrics
from kingdom.bus.metrics import BacklogMetrics, WorkerMetrics
from kingdom.bus.worker import Runnable, Worker
from kingdom.cli import exit_code
from kingdom.cli.command import Call, command
from kingdom.cli.host import Agent, Directory, Name, Sandbox, Slots, chosen_host
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
from kingdom.log_output import configure_logs
from kingdom.soldiers.sandbox.sandbox import Profile
from kingdom.workflow.reactions import engine as declared
from kingdom.workflow.streams import ENGINE_STREAMS
from kingdom.workflow.watch import watch

app = typer.Typer(add_completion=False)
_log = structlog.get_logger("kingdom.workflow")


@command(app, "engine", answer=LOG_LINES, json_flags=("--json-logs", "--json"))
async def engine(
    call: Call,
    *,
    host: Annotated[bool, typer.Option("--host", help="Run agents too: one terminal is enough.")] = False,
    name: Name = "",
    slots: Slots = 3,
    directory: Directory = None,
    agent: Agent = "scripted",
    sandbox: Sandbox = Profile.STRICT,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
    log_level: Level = "info",
) -> int | None:
    """Take every run its next step and look after hosts, until SIGTERM or SIGINT; any number of engines may run.

    With --host it is a soldier host too; the name, the slots, the directory and the agent are those of the host. The
    second signal ends it at once; the exit code is then 1.

    Example: kingdom engine --host

    Example: kingdom engine --metrics-port 9101 --json-logs

    JSON: log lines, one object each, on standard error.
    """
    configure_logs(json=call.output.json, level=logging.getLevelNamesMapping()[log_level.upper()])
    await refuse_old_store(call.settings)
    application, registry = declared(), CollectorRegistry()
    async with call.bus(application, connections=CONNECTIONS * (2 if host else 1)) as bus:
        metrics = WorkerMetrics(registry)
        parts: list[Runnable] = [Worker(bus, application.dispatcher, ENGINE_STREAMS, metrics=metrics)]
        if host:
            chosen = partial(chosen_host, name=name, slots=slots, agent=agent, sandbox=sandbox)
            parts.append(chosen(bus, call.settings, directory, metrics=metrics))
        refresh = partial(BacklogMetrics(registry).refresh, operations_of(bus), ENGINE_STREAMS)
        async with serving_metrics(registry, refresh, host=metrics_host, port=metrics_port):
            _log.info("engine started", streams=list(ENGINE_STREAMS), host=host)
            upkeep = run_retention(operations_of(bus), application.retention)
            cut_off = await run_until_stopped(parts, [watch(bus), upkeep])
    return exit_code.FAILED if cut_off else None
