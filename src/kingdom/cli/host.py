"""`kingdom host …`: the machines that run agents."""

import logging
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kingdom.bus.port import Bus
from kingdom.bus.worker import Runnable
from kingdom.cli import exit_code
from kingdom.cli.command import Call, command
from kingdom.cli.host_record import find_host
from kingdom.cli.running import CONNECTIONS, Level, refuse_old_store, run_until_stopped
from kingdom.cli.shape import LOG_LINES, array, one
from kingdom.errors import Misconfigured
from kingdom.log_output import configure_logs
from kingdom.settings import Settings
from kingdom.soldiers.sandbox.sandbox import Profile
from kingdom.soldiers.settings import AgentName, SoldierSettings
from kingdom.workflow.hosts import known_hosts, retire_host
from kingdom.workflow.model.host import Host, HostStatus
from kingdom.workflow.reactions import engine

if TYPE_CHECKING:
    from kingdom.bus.metrics import WorkerMetrics

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The machines that run agents.")
Name = Annotated[str, typer.Option("--name", help="Its name; else that of this machine.", show_default=False)]
Slots = Annotated[int, typer.Option(min=1, help="Agents at a time.")]
Directory = Annotated[
    Path | None,
    typer.Option(help="Where checkouts and transcripts lie; else soldiers/NAME in a store of files, or here."),
]
Agent = Annotated[AgentName, typer.Option("--agent", help="Which agent it runs.")]
Sandbox = Annotated[Profile, typer.Option(help="What agents may see: strict, dev (with the network) or off.")]


@command(app, "run", answer=LOG_LINES, json_flags=("--json-logs", "--json"))
async def run(
    call: Call,
    *,
    name: Name = "",
    slots: Slots = 3,
    directory: Directory = None,
    agent: Agent = "scripted",
    sandbox: Sandbox = Profile.STRICT,
    log_level: Level = "info",
) -> int | None:
    """Run agents for the runs that the engine places here, until SIGTERM or SIGINT.

    Every agent is ended then; its session goes on when the host is back under the same name. After half a minute
    without it, runs whose repositories have a checkpoint remote go on elsewhere. The second signal ends it at once;
    the exit code is then 1.

    Example: kingdom host run --name box --slots 4

    JSON: log lines, one object each, on standard error.
    """
    configure_logs(json=call.output.json, level=logging.getLevelNamesMapping()[log_level.upper()])
    await refuse_old_store(call.settings)
    async with call.bus(engine(), connections=CONNECTIONS) as bus:
        host = chosen_host(bus, call.settings, directory, name=name, slots=slots, agent=agent, sandbox=sandbox)
        cut_off = await run_until_stopped([host])
    return exit_code.FAILED if cut_off else None


@command(app, "list", answer=array(Host))
async def list_(call: Call) -> None:
    """Show every host that is up or was lost lately, and after how many silent seconds each counts as lost.

    Example: kingdom host list

    JSON: an array of {id, status, slots, busy, epoch, leaseSeconds, instance, machine, directory}.
    """
    async with call.bus(engine(), create=False) as bus, bus.transaction() as transaction:
        hosts = await known_hosts(transaction)
    if call.output.json:
        call.output.document(hosts)
    elif hosts:
        columns = ("name", "status", "slots", "busy", "epoch", "lease", "machine")
        call.output.table(columns, [_row(host) for host in hosts])
    else:
        call.output.say("No host has registered. Start one: kingdom host run")


@command(app, "retire", answer=one(Host))
async def retire(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a host.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Count a host as lost now, not only when its lease is over: its runs go on elsewhere where they can.

    Only for a host that runs no more: one that still runs would do so beside its successor until its next sign of
    life, and then begin anew.

    Example: kingdom host retire box --yes

    JSON: {id, status, slots, busy, epoch, leaseSeconds, instance, machine, directory}.
    """
    async with call.bus(engine(), create=False) as bus:
        host = await find_host(bus, name)
        if host.status is HostStatus.UP:
            call.output.confirm(f"Host {name} counts as up. Are you sure that it runs no more?", yes=yes)
            await retire_host(bus, host)
            host = await find_host(bus, name)
    if call.output.json:
        call.output.document(host)
    call.output.say(f"Host {name} is {host.status}.")


def chosen_host(
    bus: Bus,
    settings: Settings,
    directory: Path | None,
    *,
    name: str,
    slots: int,
    agent: AgentName,
    sandbox: Profile,
    metrics: "WorkerMetrics | None" = None,
) -> Runnable:
    """Return a host that is described by options alone; what runs agents is loaded only for one that is to run."""
    if agent == "command":
        raise Misconfigured(
            "which program `--agent command` runs cannot be told by options: write soldiers.agent and soldiers.command"
            " into kingdom.yaml, and start the host by `kingdom role soldiers`"
        )
    chosen = SoldierSettings(name=name, slots=slots, agent=agent, sandbox=sandbox)
    soldiers = import_module("kingdom.roles.soldiers")
    host: Runnable = soldiers.soldier_host(bus, settings, chosen, directory, metrics=metrics)
    return host


def _row(host: Host) -> tuple[object, ...]:
    return (host.id, host.status, host.slots, host.busy, host.epoch, f"{host.lease_seconds:g} s", host.machine)
