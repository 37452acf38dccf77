"""`kingdom host …`: the machines that run agents."""

from functools import partial
from typing import Annotated

import typer

from kingdom.actions.hosts import find_host
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.json_result import array, one
from kingdom.court.status import count_noun
from kingdom.workflow.hosts import known_hosts, retire_host, set_drained
from kingdom.workflow.model.resources.host import Host, HostStatus
from kingdom.workflow.reactions import engine
from kingdom.workflow.records import run_transaction
from kingdom.workflow.relocation import undrain_host

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The machines that run agents.")

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of a host.")]


@command(app, "list", result=array(Host))
async def list_(call: CommandCall) -> None:
    """Show every host that is up or was lost recently.

    A host without a heartbeat for longer than its lease counts as lost.

    Example: kingdom host list

    JSON: an array of {id, status, drained, slots, busy, epoch, leaseSeconds, instance, machine, directory}.
    """
    async with call.bus(engine(), create=False) as bus, bus.transaction() as transaction:
        hosts = await known_hosts(transaction)
    if call.output.json:
        call.output.document(hosts)
    elif hosts:
        columns = ("name", "status", "slots", "busy", "epoch", "lease", "machine")
        call.output.table(columns, [_row(host) for host in hosts])
    else:
        start = "kingdom up, or kingdom role soldiers" if call.settings.file else "kingdom role host"
        call.output.say(f"No host has registered. Start one: {start}")


@command(app, "retire", result=one(Host))
async def retire(
    call: CommandCall,
    name: _Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Declare a host lost now, without waiting for its lease to expire, so that its runs can move to other hosts.

    Do this only when the host no longer runs. Otherwise the old host and the new host of a run both work on it, until
    the next heartbeat of the old host: then the old host stops this work and registers again.

    Example: kingdom host retire box --yes

    JSON: {id, status, drained, slots, busy, epoch, leaseSeconds, instance, machine, directory}.
    """
    async with call.bus(engine(), create=False) as bus:
        host = await find_host(bus, name)
        if host.status is HostStatus.UP:
            call.output.confirm(f"Host {name} counts as up. Are you sure that it no longer runs?", yes=yes)
            await retire_host(bus, host)
            host = await find_host(bus, name)
    if call.output.json:
        call.output.document(host)
    call.output.say(f"Host {name} is {host.status}.")


@command(app, "drain", result=one(Host))
async def drain(call: CommandCall, name: _Name) -> None:
    """Stop giving new runs to a host, for example before maintenance. The runs that it has continue there.

    When `kingdom host list` shows that it is no longer busy, stop it. It stays drained when it starts again, until
    `kingdom host undrain`.

    Example: kingdom host drain box

    JSON: {id, status, drained, slots, busy, epoch, leaseSeconds, instance, machine, directory}.
    """
    async with call.bus(engine(), create=False) as bus:
        act = partial(set_drained, host_id=name, drained=True, actor=call.settings.actor)
        host = await run_transaction(bus, act)
    if call.output.json:
        call.output.document(host)
    call.output.say(f"Host {name} takes no new runs. It runs {count_noun(host.busy, 'agent')} now.")


@command(app, "undrain", result=one(Host))
async def undrain(call: CommandCall, name: _Name) -> None:
    """Let a drained host take new runs again.

    Example: kingdom host undrain box

    JSON: {id, status, drained, slots, busy, epoch, leaseSeconds, instance, machine, directory}.
    """
    async with call.bus(engine(), create=False) as bus:
        host = await run_transaction(bus, partial(undrain_host, host_id=name, actor=call.settings.actor))
    if call.output.json:
        call.output.document(host)
    call.output.say(f"Host {name} takes new runs.")


def _row(host: Host) -> tuple[object, ...]:
    status = f"{host.status}, drained" if host.drained else host.status
    return (host.id, status, host.slots, host.busy, host.epoch, f"{host.lease_seconds:g} s", host.machine)
