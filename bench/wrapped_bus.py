"""A bus that delegates to another bus. It is the base of buses that count, delay or break calls."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta

from kingdom.bus.delivery import Delivery
from kingdom.bus.port import Bus, LeaseRenewal, Transaction


class WrappedBus(Bus):
    """Delegates everything to the inner bus."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus.topology, tuple(bus.kinds.values()))
        self.joins_callers_transaction = bus.joins_callers_transaction
        self.spans_hosts = bus.spans_hosts
        self.adopts_dropped_files = bus.adopts_dropped_files
        self.has_one_writer = bus.has_one_writer
        self.idle_limit = bus.idle_limit
        self._bus = bus

    def transaction(
        self, hold: Sequence[Delivery] = (), *, optimistic: bool = False
    ) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction; see `Bus.transaction`."""
        return self._bus.transaction(hold, optimistic=optimistic)

    async def claim(self, stream: str, limit: int, worker: str) -> list[Delivery]:
        """Claim; see `Bus.claim`."""
        return await self._bus.claim(stream, limit, worker)

    def renew(self, leases: Mapping[int, timedelta]) -> LeaseRenewal:
        """Extend leases; see `Bus.renew`."""
        return self._bus.renew(leases)

    async def reap(self) -> int:
        """Requeue the events of expired leases; see `Bus.reap`."""
        return await self._bus.reap()

    async def wait(self, streams: Collection[str], at_most: timedelta) -> None:
        """Wait until a stream may have due events; see `Bus.wait`."""
        await self._bus.wait(streams, at_most)

    async def close(self) -> None:
        """Close the inner bus."""
        await self._bus.close()
