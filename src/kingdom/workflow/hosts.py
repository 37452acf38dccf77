"""The life of hosts in the store: they register, renew their lease, retire and are lost."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import msgspec

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordQuery, read_document
from kingdom.errors import Misconfigured
from kingdom.workflow.lookout import Lookout, Sign, boot_time
from kingdom.workflow.model.host import Host, HostStatus, Renewal
from kingdom.workflow.records import ENGINE, HOSTS, announce, change, each, event_envelope, log_entry

_LOOKS_PER_LEASE = 6


async def register_host(
    bus: Bus,
    host_id: str,
    slots: int,
    lease: timedelta,
    *,
    machine: str = "",
    directory: str = "",
    instance: str = "",
    first: Callable[[Transaction], Awaitable[None]] | None = None,
    clock: Callable[[], float] = boot_time,
) -> Host:
    """Let a host take commands, under an epoch that it never had.

    `instance` tells hosts of one name apart. While another one is up, this waits for a lease of it: the other keeps the
    name if it gives a sign of life, and is replaced if it does not. What `first` does is stored with the registration:
    nothing of a name is touched before it is known to be free.
    """
    silent: int | None = None

    async def act(transaction: Transaction) -> Host | Record:
        record, before = await find_host(transaction, host_id)
        if record and before and _is_taken(before, instance) and record.version != silent:
            return record
        if first:
            await first(transaction)
        host = Host(
            id=host_id,
            epoch=before.epoch + 1 if before else 1,
            slots=slots,
            machine=machine,
            directory=directory,
            instance=instance,
            lease_seconds=lease.total_seconds(),
        )
        await _put(transaction, host, record)
        await announce(transaction, [host.registered()], aggregate="Host", key=host_id, actor=host_id)
        return host

    while True:
        outcome = await change(bus, act)
        if isinstance(outcome, Host):
            return outcome
        silent = await _outwait(bus, outcome, clock)


async def renew_host(bus: Bus, host: Host, busy: int, lease: timedelta) -> Renewal:
    """Extend the lease of a host and tell how much it has to do, unless it was lost or replaced meanwhile."""

    async def act(transaction: Transaction) -> Renewal:
        record, now = await find_host(transaction, host.id)
        if now is None:
            return Renewal.LOST
        if (now.epoch, now.instance) != (host.epoch, host.instance):
            return Renewal.REPLACED
        if now.status is HostStatus.LOST:
            return Renewal.LOST
        renewed = msgspec.structs.replace(now, busy=busy, lease_seconds=lease.total_seconds())
        await _put(transaction, renewed, record)
        return Renewal.RENEWED

    return await change(bus, act)


async def retire_host(bus: Bus, host: Host, *, leaves_runs: bool = True) -> None:
    """Let a host go at once: nothing is placed there any more, and the runs that it leaves find another one."""

    async def act(transaction: Transaction) -> None:
        record, now = await find_host(transaction, host.id)
        if record and now and (now.epoch, now.status) == (host.epoch, HostStatus.UP):
            await _lose(transaction, record, leaves_runs=leaves_runs)

    await change(bus, act)


async def lose_hosts(bus: Bus, lookout: Lookout) -> list[Host]:
    """Look at every host that is up, and count as lost those that were silent for a whole lease; returns these."""

    async def act(transaction: Transaction) -> list[Host]:
        up = [record async for record in each(transaction, RecordQuery(kind=HOSTS.name, state=HostStatus.UP))]
        overdue = lookout.look({record.id: _sign(record) for record in up})
        return [await _lose(transaction, record) for record in up if record.id in overdue]

    try:
        return await change(bus, act)
    except BaseException:
        lookout.forget()
        raise


async def known_hosts(transaction: Transaction) -> list[Host]:
    """Return every host that is remembered."""
    return [read_document(record.doc, Host) async for record in each(transaction, RecordQuery(kind=HOSTS.name))]


async def find_host(transaction: Transaction, host_id: str) -> tuple[Record | None, Host | None]:
    """Return a host as it is stored, if it is known."""
    record = await transaction.get(HOSTS.name, host_id)
    return record, read_document(record.doc, Host) if record else None


def _is_taken(host: Host, instance: str) -> bool:
    return host.status is HostStatus.UP and host.instance != instance


def _sign(record: Record) -> Sign:
    return Sign(record.version, read_document(record.doc, Host).lease_seconds)


async def _outwait(bus: Bus, other: Record, clock: Callable[[], float]) -> int:
    """Return the version of a host that gives no sign of life for a lease; refuses to replace one that does."""
    lease = _sign(other).lease_seconds
    over = clock() + lease
    while True:
        await asyncio.sleep(lease / _LOOKS_PER_LEASE)
        async with bus.transaction() as transaction:
            record, now = await find_host(transaction, other.id)
        if record and now and now.status is HostStatus.UP and record.version != other.version:
            raise Misconfigured(
                f"another host named {now.id} runs on machine {now.machine or 'unknown'}, directory"
                f" {now.directory or 'unknown'}: stop it there, or give this one a name of its own"
            )
        if record is None or record.version != other.version or clock() >= over:
            return other.version


async def _put(transaction: Transaction, host: Host, record: Record | None) -> None:
    version = record.version if record else 0
    document = msgspec.to_builtins(host)
    await transaction.put(Record(kind=HOSTS.name, id=host.id, version=version, state=host.status, doc=document))


async def _lose(transaction: Transaction, record: Record, *, leaves_runs: bool = True) -> Host:
    host, said = read_document(record.doc, Host).lose()
    await _put(transaction, host, record)
    if leaves_runs:
        await announce(transaction, [said], aggregate="Host", key=host.id, actor=ENGINE)
    else:
        # Nobody has to act on it.
        await transaction.append(log_entry(event_envelope(said, "Host", host.id), host.id))
    return host
