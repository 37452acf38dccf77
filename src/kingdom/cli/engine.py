"""`kingdom engine`: the process that takes every run its next step."""

import logging
from contextlib import ExitStack
from typing import Annotated

import structlog
import typer
from prometheus_client import CollectorRegistry

from kingdom.bootstrap import operations_of
from kingdom.bus.logs import configure_logs
from kingdom.bus.maintenance import maintain, serving_metrics
from kingdom.bus.metrics import BacklogMetrics
from kingdom.bus.worker import Part, Worker
from kingdom.cli import exit_code
from kingdom.cli.command import Call, command
from kingdom.cli.host import CONNECTIONS, Agent, Directory, Level, Name, Sandbox, Slots, chosen_settings, soldier_host
from kingdom.cli.running import refuse_old_store, run_until_stopped
from kingdom.soldiers.sandbox.sandbox import Profile
from kingdom.workflow.reactions import engine as declared
from kingdom.workflow.streams import ENGINE_STREAMS
from kingdom.workflow.watch import watch

app = typer.Typer(add_completion=False)
_log = structlog.get_logger("kingdom.workflow")


@command(app, "engine", json_flags=("--json-logs", "--json"))
async def engine(
    call: Call,
    *,
    host: Annotated[bool, typer.Option("--host", help="Run agents too: one terminal is enough.")] = False,
    name: Name = "",
    slots: Slots = 3,
    directory: Directory = None,
    agent: Agent = "scripted",
    sandbox: Sandbox = Profile.STRICT,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics; 0 takes a free port.")
    ] = None,
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
        parts: list[Part] = [Worker(bus, application.dispatcher, ENGINE_STREAMS, registry=registry)]
        if host:
            chosen = chosen_settings(name=name, slots=slots, agent=agent, sandbox=sandbox)
            parts.append(soldier_host(bus, call.settings, chosen, directory))
        with ExitStack() as stack:
            if metrics_port is not None:
                address = stack.enter_context(serving_metrics(registry, host="127.0.0.1", port=metrics_port))
                _log.info("metrics served", address=address)
            backlog = BacklogMetrics(registry)
            upkeep = maintain(operations_of(bus), backlog, ENGINE_STREAMS, retention=application.retention)
            _log.info("engine started", streams=list(ENGINE_STREAMS), host=host)
            cut_off = await run_until_stopped(parts, [watch(bus), upkeep])
    return exit_code.FAILED if cut_off else None
