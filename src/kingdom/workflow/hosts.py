"""Hosts in the store: register, renew the lease, retire, and mark as lost."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import msgspec

from kingdom.bus.log import LogEntry
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordQuery, read_document
from kingdom.errors import Misconfigured, NotFound
from kingdom.workflow.host_liveness import LeaseObservation, LivenessMonitor, boot_time
from kingdom.workflow.model.resources.host import Host, HostRenewal, HostStatus
from kingdom.workflow.records import (
    ENGINE,
    HOSTS,
    each_record,
    event_envelope,
    log_entry,
    publish_events,
    run_transaction,
)

HOST_DRAINED, HOST_UNDRAINED = "host.drained", "host.undrained"
_CHECKS_PER_LEASE = 6
# The field of a host's record that counts its registrations and renewals. It changes with nothing else.
_RENEWALS = "renewals"


async def register_host(
    bus: Bus,
    host_id: str,
    slots: int,
    lease: timedelta,
    *,
    machine: str = "",
    directory: str = "",
    instance: str = "",
    on_name_free: Callable[[Transaction], Awaitable[None]] | None = None,
    clock: Callable[[], float] = boot_time,
) -> Host:
    """Register a host under a new epoch, so that it gets commands.

    `instance` distinguishes hosts with the same name. If another instance is up, wait for the duration of its
    lease. If the other instance renews the lease, it keeps the name, otherwise this instance replaces it.
    `on_name_free` is called in the transaction of the registration.
    """
    silent: LeaseObservation | None = None

    async def act(transaction: Transaction) -> Host | Record:
        record, before = await find_host(transaction, host_id)
        if record and before and _is_taken(before, instance) and _observe(record) != silent:
            return record
        if on_name_free:
            await on_name_free(transaction)
        host = Host(
            id=host_id,
            epoch=before.epoch + 1 if before else 1,
            slots=slots,
            machine=machine,
            directory=directory,
            instance=instance,
            lease_seconds=lease.total_seconds(),
            drained=before is not None and before.drained,
        )
        await _put(transaction, host, record, renews=True)
        await publish_events(transaction, [host.registered_event()], aggregate="Host", key=host_id, actor=host_id)
        return host

    while True:
        outcome = await run_transaction(bus, act)
        if isinstance(outcome, Host):
            return outcome
        silent = await _wait_one_lease(bus, outcome, clock)


async def renew_host(bus: Bus, host: Host, busy: int, lease: timedelta) -> HostRenewal:
    """Renew the lease of a host and store its load, unless it was lost or replaced in the meantime."""

    async def act(transaction: Transaction) -> HostRenewal:
        record, now = await find_host(transaction, host.id)
        if now is None:
            return HostRenewal.LOST
        if (now.epoch, now.instance) != (host.epoch, host.instance):
            return HostRenewal.REPLACED
        if now.status is HostStatus.LOST:
            return HostRenewal.LOST
        renewed = msgspec.structs.replace(now, busy=busy, lease_seconds=lease.total_seconds())
        await _put(transaction, renewed, record, renews=True)
        return HostRenewal.RENEWED

    return await run_transaction(bus, act)


async def retire_host(where: Bus | Transaction, host: Host, *, leaves_runs: bool = True) -> None:
    """Mark a host as lost at once: it gets no new runs, and its runs move to other hosts.

    `leaves_runs` is False if the host has no runs.
    """

    async def act(transaction: Transaction) -> None:
        record, now = await find_host(transaction, host.id)
        if record and now and (now.epoch, now.status) == (host.epoch, HostStatus.UP):
            await _mark_lost(transaction, record, leaves_runs=leaves_runs)

    await run_transaction(where, act)


async def set_drained(transaction: Transaction, host_id: str, *, drained: bool, actor: str) -> Host:
    """Stop giving new runs to a host, or give it new runs again. Repeating it changes nothing."""
    record, host = await find_host(transaction, host_id)
    if host is None:
        raise NotFound(f"there is no host {host_id!r}: `kingdom host list` shows all hosts")
    if host.drained == drained:
        return host
    changed = msgspec.structs.replace(host, drained=drained)
    await _put(transaction, changed, record)
    entry_type = HOST_DRAINED if drained else HOST_UNDRAINED
    await transaction.append(LogEntry(type=entry_type, actor=actor, aggregate_type="Host", aggregate_id=host_id))
    return changed


async def mark_lost_hosts(bus: Bus, monitor: LivenessMonitor) -> list[Host]:
    """Find the hosts that did not renew for a whole lease, mark them as lost and return them."""

    async def act(transaction: Transaction) -> list[Host]:
        up = [record async for record in each_record(transaction, RecordQuery(kind=HOSTS.name, state=HostStatus.UP))]
        overdue = monitor.observe({record.id: _observe(record) for record in up})
        return [await _mark_lost(transaction, record) for record in up if record.id in overdue]

    try:
        return await run_transaction(bus, act)
    except BaseException:
        monitor.reset()
        raise


async def known_hosts(transaction: Transaction) -> list[Host]:
    """Return every registered host, including lost ones."""
    return [read_document(record.doc, Host) async for record in each_record(transaction, RecordQuery(kind=HOSTS.name))]


async def find_host(transaction: Transaction, host_id: str) -> tuple[Record | None, Host | None]:
    """Return a host and its record, if it is known."""
    record = await transaction.get(HOSTS.name, host_id)
    return record, read_document(record.doc, Host) if record else None


def _is_taken(host: Host, instance: str) -> bool:
    return host.status is HostStatus.UP and host.instance != instance


def _observe(record: Record) -> LeaseObservation:
    # A host of an earlier version does not count its renewals, but each of them changes the version of the record.
    renewals = _renewals(record) or -record.version
    return LeaseObservation(renewals, read_document(record.doc, Host).lease_seconds)


def _renewals(record: Record | None) -> int:
    return int(record.doc.get(_RENEWALS, 0)) if record else 0


async def _wait_one_lease(bus: Bus, other: Record, clock: Callable[[], float]) -> LeaseObservation:
    """Wait for one lease and return the lease of a host that did not renew; raise Misconfigured if it renewed."""
    observed = _observe(other)
    deadline = clock() + observed.lease_seconds
    while True:
        await asyncio.sleep(observed.lease_seconds / _CHECKS_PER_LEASE)
        async with bus.transaction() as transaction:
            record, now = await find_host(transaction, other.id)
        if record is None or now is None or now.status is HostStatus.LOST:
            return observed
        if _observe(record) != observed:
            raise Misconfigured(
                f"another host named {now.id} runs on machine {now.machine or 'unknown'}, directory"
                f" {now.directory or 'unknown'}: stop it there, or give this host another name"
            )
        if clock() >= deadline:
            return observed


async def _put(transaction: Transaction, host: Host, record: Record | None, *, renews: bool = False) -> None:
    version = record.version if record else 0
    document = {**msgspec.to_builtins(host), _RENEWALS: _renewals(record) + renews}
    await transaction.put(Record(kind=HOSTS.name, id=host.id, version=version, state=host.status, doc=document))


async def _mark_lost(transaction: Transaction, record: Record, *, leaves_runs: bool = True) -> Host:
    host, event = read_document(record.doc, Host).as_lost()
    await _put(transaction, host, record)
    if leaves_runs:
        await publish_events(transaction, [event], aggregate="Host", key=host.id, actor=ENGINE)
    else:
        # The host has no runs, so the event is only logged.
        await transaction.append(log_entry(event_envelope(event, "Host", host.id), host.id))
    return host
