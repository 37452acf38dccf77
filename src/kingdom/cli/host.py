"""`kingdom host …`: the machines that run agents."""

import logging
import re
import socket
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

import typer

from kingdom import bootstrap
from kingdom.bus.logs import configure_logs
from kingdom.bus.port import Bus
from kingdom.cli import exit_code
from kingdom.cli.command import Call, command
from kingdom.cli.host_record import find_host
from kingdom.cli.running import refuse_old_store, run_until_stopped
from kingdom.errors import Misconfigured
from kingdom.realm import Realm, secrets_of
from kingdom.settings import Settings, read_environment
from kingdom.soldiers.folders import Folders
from kingdom.soldiers.host import SoldierHost
from kingdom.soldiers.kinds import KINDS, quarters_of
from kingdom.soldiers.sandbox.sandbox import Profile
from kingdom.soldiers.settings import AgentName, SoldierSettings
from kingdom.workflow.hosts import known_hosts, retire_host
from kingdom.workflow.model.host import Host, HostStatus
from kingdom.workflow.reactions import engine

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The machines that run agents.")
# What runs beside the handlers needs connections too: the lease, what is said, the upkeep.
CONNECTIONS = 20
# Part of the name of a stream, in which a dot would end it.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")

Level = Annotated[Literal["debug", "info", "warning", "error"], typer.Option(help="What to log.")]
Name = Annotated[str, typer.Option("--name", help="Its name; else that of this machine.", show_default=False)]
Slots = Annotated[int, typer.Option(min=1, help="Agents at a time.")]
Directory = Annotated[
    Path | None,
    typer.Option(help="Where checkouts and transcripts lie; else soldiers/NAME in a store of files, or here."),
]
Agent = Annotated[AgentName, typer.Option("--agent", help="Which agent it runs.")]
Sandbox = Annotated[Profile, typer.Option(help="What agents may see: strict, dev (with the network) or off.")]


@command(app, "run", json_flags=("--json-logs", "--json"))
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
        chosen = chosen_settings(name=name, slots=slots, agent=agent, sandbox=sandbox)
        host = soldier_host(bus, call.settings, chosen, directory)
        cut_off = await run_until_stopped([host])
    return exit_code.FAILED if cut_off else None


@command(app, "list")
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


@command(app, "retire")
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


def chosen_settings(*, name: str, slots: int, agent: AgentName, sandbox: Profile) -> SoldierSettings:
    """Return the settings of a host that is described by options alone."""
    if agent == "command":
        raise Misconfigured(
            "which program `--agent command` runs cannot be told by options: write soldiers.agent and soldiers.command"
            " into kingdom.yaml, and start the host by `kingdom role soldiers`"
        )
    return SoldierSettings(name=name, slots=slots, agent=agent, sandbox=sandbox)


def soldier_host(
    bus: Bus,
    settings: Settings,
    soldiers: SoldierSettings,
    directory: Path | None,
    secrets: frozenset[str] = frozenset(),
) -> SoldierHost:
    """Return a host as settings describe it; `secrets` and the password of the store are never written down."""
    chosen = soldiers.name or socket.gethostname().partition(".")[0]
    if not _NAME.fullmatch(chosen):
        raise Misconfigured(f"{chosen!r} is no name for a host: choose one of letters, digits, - and _ with --name")
    # The directory of a store of files; beside the work for others.
    beside = bootstrap.directory_of(settings.database_url) or Path()
    folders = Folders(directory or beside / "soldiers" / chosen)
    return SoldierHost(
        bus,
        chosen,
        KINDS[soldiers.agent].client(soldiers),
        folders,
        slots=soldiers.slots,
        lease=timedelta(seconds=soldiers.lease_seconds),
        quarters=quarters_of(
            soldiers, read_environment, {*secrets, *secrets_of(Realm(database_url=settings.database_url))}
        ),
    )


def _row(host: Host) -> tuple[object, ...]:
    return (host.id, host.status, host.slots, host.busy, host.epoch, f"{host.lease_seconds:g} s", host.machine)
