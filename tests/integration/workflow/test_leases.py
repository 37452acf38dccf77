"""The engine measures by its own clock how long a host is silent, and only one living host has a name at a time."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from kingdom.bus import LogEntry, Retention, Transaction
from kingdom.errors import Misconfigured, Transient
from kingdom.workflow.host_liveness import LivenessMonitor
from kingdom.workflow.hosts import known_hosts, mark_lost_hosts, register_host, renew_host, retire_host, set_drained
from kingdom.workflow.model.resources.host import Host, HostRenewal, HostStatus
from kingdom.workflow.reactions import engine
from kingdom.workflow.records import HOSTS
from kingdom.workflow.timers import run_timers
from tests.contract.backends import BackendUnderTest
from tests.integration.workflow.scene import LEASE, Scene
from tests.patience import PATIENCE_SECONDS

# A lease is checked six times. A sixth of this lease is a power of two, so six of them add up exactly.
SHORT = timedelta(seconds=6 / 128)
LOOKS = 6


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


class Broken:
    """A bus whose next transactions fail."""

    def __init__(self, bus: Any, error: Exception, times: int) -> None:
        self._bus = bus
        self._error = error
        self.left = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    @asynccontextmanager
    async def transaction(self, *hold: Any, **options: Any) -> AsyncIterator[Transaction]:
        if self.left:
            self.left -= 1
            raise self._error
        async with self._bus.transaction(*hold, **options) as transaction:
            yield transaction


async def status(scene: Scene, name: str = "host-a") -> HostStatus:
    async with scene.bus.transaction() as transaction:
        return {host.id: host.status for host in await known_hosts(transaction)}[name]


async def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


class Watcher:
    """Checks the hosts of a scene every quarter of a lease."""

    def __init__(self, scene: Scene) -> None:
        self.clock = Clock()
        self.monitor = LivenessMonitor(self.clock)
        self._scene = scene

    async def look(self, bus: Any = None) -> list[str]:
        lost = await mark_lost_hosts(bus or self._scene.bus, self.monitor)
        self.clock.at += LEASE.total_seconds() / 4
        return [host.id for host in lost]


async def test_a_host_is_lost_after_a_full_lease_of_observed_silence(scene: Scene) -> None:
    await register_host(scene.bus, "host-a", 4, LEASE)
    talking = await register_host(scene.bus, "host-b", 4, LEASE)
    watcher = Watcher(scene)
    lost: list[list[str]] = []
    for _ in range(6):
        lost.append(await watcher.look())
        assert await renew_host(scene.bus, talking, 0, LEASE)
    assert lost == [[], [], [], [], ["host-a"], []]
    assert (await status(scene), await status(scene, "host-b")) == (HostStatus.LOST, HostStatus.UP)


async def test_no_host_is_lost_because_the_store_was_unavailable(scene: Scene) -> None:
    host = await register_host(scene.bus, "host-a", 4, LEASE)
    watcher = Watcher(scene)
    for _ in range(4):
        assert await watcher.look() == []
    with pytest.raises(Transient):
        await watcher.look(Broken(scene.bus, Transient("away"), 1))
    assert await watcher.look() == []
    assert await renew_host(scene.bus, host, 0, LEASE)
    assert [await watcher.look() for _ in range(4)] == [[]] * 4


async def test_a_second_host_with_the_same_name_is_refused_while_the_first_renews_its_lease(scene: Scene) -> None:
    first = await register_host(scene.bus, "box", 4, SHORT, machine="oak", directory="/srv/a", instance="one")
    bus: Any = CheckingBus(scene.bus, lambda _: renew_host(scene.bus, first, 0, SHORT))
    touched: list[Transaction] = []

    async def touch(transaction: Transaction) -> None:
        touched.append(transaction)

    with pytest.raises(Misconfigured, match="another host named box runs on machine oak, directory /srv/a: stop it"):
        await register_host(bus, "box", 4, SHORT, machine="elm", instance="two", on_name_free=touch, clock=bus.clock)
    assert touched == []
    assert await renew_host(scene.bus, first, 0, SHORT) is HostRenewal.RENEWED


async def test_a_silent_host_of_the_same_name_is_replaced(scene: Scene) -> None:
    first = await register_host(scene.bus, "box", 4, SHORT, instance="one")
    bus: Any = CheckingBus(scene.bus)
    second = await register_host(bus, "box", 4, SHORT, instance="two", clock=bus.clock)
    # The registration checks before, during and after the lease.
    assert bus.count == 1 + LOOKS + 1
    assert (first.epoch, second.epoch) == (1, 2)
    assert await renew_host(scene.bus, first, 0, SHORT) is HostRenewal.REPLACED
    assert await renew_host(scene.bus, second, 0, SHORT) is HostRenewal.RENEWED


async def nothing(_: int) -> None:
    """Change nothing."""


class CheckingBus:
    """A bus whose clock advances by a sixth of a lease with each check, and which calls a function after each check."""

    def __init__(self, bus: Any, behind: Callable[[int], Awaitable[Any]] = nothing) -> None:
        self.clock = Clock()
        self.count = 0
        self._bus = bus
        self._behind = behind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    @asynccontextmanager
    async def transaction(self, *hold: Any, **options: Any) -> AsyncIterator[Transaction]:
        async with self._bus.transaction(*hold, **options) as transaction:
            yield transaction
        self.count += 1
        self.clock.at += SHORT.total_seconds() / LOOKS
        await self._behind(self.count)


async def test_a_host_that_renews_at_the_last_moment_keeps_its_name(scene: Scene) -> None:
    first = await register_host(scene.bus, "box", 4, SHORT, instance="one")

    async def renew_at_last(looks: int) -> None:
        if looks > LOOKS:
            await renew_host(scene.bus, first, 0, SHORT)

    bus: Any = CheckingBus(scene.bus, renew_at_last)
    with pytest.raises(Misconfigured, match="another host named box runs"):
        await register_host(bus, "box", 4, SHORT, instance="two", clock=bus.clock)
    assert bus.count > 1 + LOOKS
    assert await renew_host(scene.bus, first, 0, SHORT) is HostRenewal.RENEWED


async def test_a_restarted_host_and_the_successor_of_a_lost_host_register_without_waiting(scene: Scene) -> None:
    await register_host(scene.bus, "box", 4, LEASE, instance="one")
    again = await asyncio.wait_for(register_host(scene.bus, "box", 4, LEASE, instance="one"), PATIENCE_SECONDS)
    await retire_host(scene.bus, again)
    other = await asyncio.wait_for(register_host(scene.bus, "box", 4, LEASE, instance="two"), PATIENCE_SECONDS)
    assert (again.epoch, other.epoch) == (2, 3)


async def test_the_first_action_of_a_host_is_stored_with_its_registration_or_not_at_all(scene: Scene) -> None:
    async def note(transaction: Transaction) -> None:
        await transaction.append(LogEntry(type="Noted", actor="box"))

    async def fail(transaction: Transaction) -> None:
        await note(transaction)
        raise Transient("no")

    with pytest.raises(Transient):
        await register_host(scene.bus, "box", 4, LEASE, on_name_free=fail)
    before = [entry.type for entry in await scene.log()]
    await register_host(scene.bus, "box", 4, LEASE, on_name_free=note)
    assert [entry.type for entry in await scene.log()] == [*before, "Noted", "HostRegistered"]
    assert {"Noted", "HostRegistered"}.isdisjoint(before)


async def drain_or_undrain(scene: Scene, *, drained: bool) -> None:
    async with scene.bus.transaction() as transaction:
        await set_drained(transaction, "box", drained=drained, actor="anna")


async def test_a_host_that_is_drained_while_another_takes_over_its_name_counts_as_silent(scene: Scene) -> None:
    await register_host(scene.bus, "box", 4, SHORT, instance="one")

    async def drain(looks: int) -> None:
        if looks in {2, 1 + LOOKS}:
            await drain_or_undrain(scene, drained=looks == 2)

    bus: Any = CheckingBus(scene.bus, drain)
    second = await register_host(bus, "box", 4, SHORT, instance="two", clock=bus.clock)
    assert (second.epoch, second.drained, bus.count) == (2, False, 1 + LOOKS + 1)


async def test_draining_does_not_extend_the_lease_of_a_silent_host(scene: Scene) -> None:
    await register_host(scene.bus, "box", 4, LEASE)
    watcher = Watcher(scene)
    lost: list[list[str]] = []
    for number in range(5):
        lost.append(await watcher.look())
        await drain_or_undrain(scene, drained=number % 2 == 0)
    assert lost == [[], [], [], [], ["box"]]


async def test_the_renewals_of_a_host_of_an_earlier_version_are_seen_too(scene: Scene) -> None:
    host = await register_host(scene.bus, "box", 4, LEASE)
    watcher = Watcher(scene)
    for _ in range(6):
        async with scene.bus.transaction() as transaction:
            record = await transaction.get(HOSTS.name, "box")
            assert record
            await transaction.put(record.replace(doc=msgspec.to_builtins(host)))
        assert await watcher.look() == []


async def test_a_registration_under_the_name_of_a_silent_host_ends_when_the_host_counts_as_lost(scene: Scene) -> None:
    first = await register_host(scene.bus, "box", 4, SHORT, instance="one")

    async def retire_it(looks: int) -> None:
        if looks == 2:
            await retire_host(scene.bus, first)

    bus: Any = CheckingBus(scene.bus, retire_it)
    assert (await register_host(bus, "box", 4, SHORT, instance="two", clock=bus.clock)).instance == "two"
    assert bus.count < 1 + LOOKS


async def test_a_lease_shows_whether_it_was_renewed_lost_or_taken_over(scene: Scene) -> None:
    first = await register_host(scene.bus, "host-a", 4, LEASE)
    assert await renew_host(scene.bus, first, 0, LEASE) is HostRenewal.RENEWED
    await retire_host(scene.bus, first)
    assert await renew_host(scene.bus, first, 0, LEASE) is HostRenewal.LOST
    await register_host(scene.bus, "host-a", 4, LEASE)
    assert await renew_host(scene.bus, first, 0, LEASE) is HostRenewal.REPLACED
    assert await renew_host(scene.bus, Host(id="host-z", epoch=1, slots=1), 0, LEASE) is HostRenewal.LOST


@pytest.mark.parametrize("error", [Transient("away"), RuntimeError("a bug")], ids=["expected", "unexpected"])
async def test_the_check_of_hosts_continues_after_any_error(scene: Scene, error: Exception) -> None:
    await register_host(scene.bus, "host-a", 4, timedelta(0))
    bus: Any = Broken(scene.bus, error, 4)
    watching = asyncio.create_task(run_timers(bus, timedelta(seconds=0.02)))

    async def is_lost() -> bool:
        return await status(scene) is HostStatus.LOST

    try:
        await until(is_lost)
    finally:
        watching.cancel()
        await asyncio.wait({watching})
    assert bus.left == 0


async def test_the_record_of_a_lost_host_expires_unless_the_host_registers_again(backend: BackendUnderTest) -> None:
    application = engine()
    kinds = [replace(kind, retention=timedelta(0)) if kind is HOSTS else kind for kind in application.kinds]
    async with backend.open(application.topology, kinds) as bus:

        async def remembered() -> list[str]:
            await backend.operations(bus).retain(Retention())
            async with bus.transaction() as transaction:
                return [host.id for host in await known_hosts(transaction)]

        await retire_host(bus, await register_host(bus, "host-a", 4, LEASE))
        back = await register_host(bus, "host-a", 4, LEASE)
        assert await remembered() == ["host-a"]
        await retire_host(bus, back)
        assert await remembered() == []
