"""A bus that records the claims, settlements and losses of its process in the history."""

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from kingdom.bus.delivery import Delivery
from kingdom.bus.metrics import WorkerMetrics
from kingdom.bus.port import Bus, LeaseRenewal, Transaction
from kingdom.errors import LeaseLost, Unavailable
from kingdom.verify.history import History


class RecordingMetrics(WorkerMetrics):
    """Records the deliveries that a worker loses."""

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history

    def count_lost(self, delivery: Delivery) -> None:
        """Record a delivery whose lease was lost."""
        super().count_lost(delivery)
        self._history.write("lease_lost", tokens=[delivery.token])


class RecordingBus(Bus):
    """Forwards every call to another bus, and records the result."""

    def __init__(self, inner: Bus, history: History) -> None:
        super().__init__(inner.topology, tuple(inner.kinds.values()))
        self.joins_callers_transaction = inner.joins_callers_transaction
        self.spans_hosts = inner.spans_hosts
        self.idle_limit = inner.idle_limit
        self._inner = inner
        self._history = history

    @asynccontextmanager
    async def transaction(
        self, hold: Sequence[Delivery] = (), *, optimistic: bool = False
    ) -> AsyncIterator[Transaction]:
        """See `Bus.transaction`."""
        transaction: Transaction | None = None
        began, outcomes = 0, dict[int, dict[str, str]]()
        try:
            async with self._inner.transaction(hold, optimistic=optimistic) as transaction:
                yield transaction
                # A commit may remove settlements from the changes, so they are read before.
                began, outcomes = time.monotonic_ns(), _outcomes(transaction)
                # This is written before the commit, because a process may die right after the commit.
                self._write("settling", outcomes, began)
        except Unavailable:
            # The commit may have happened.
            raise
        except Exception as error:
            if isinstance(error, LeaseLost):
                self._history.write("refused", positions=sorted(error.positions))
            if began:
                self._write("not_settled", outcomes, began)
            raise
        self._write("settled", outcomes, began)

    async def claim(self, stream: str, limit: int, worker: str) -> list[Delivery]:
        """See `Bus.claim`."""
        asked = time.monotonic_ns()
        deliveries = await self._inner.claim(stream, limit, worker)
        if deliveries:
            events = [[d.position, str(d.envelope.event_id), d.attempt, d.crash_count] for d in deliveries]
            first = deliveries[0]
            carried = {"in_transport": True} if first.in_transport else {}
            self._history.write("claimed", token=first.token, stream=stream, asked=asked, events=events, **carried)
        return deliveries

    def renew(self, leases: Mapping[int, timedelta]) -> LeaseRenewal:
        """See `Bus.renew`."""
        asked = time.monotonic_ns()
        renewal = self._inner.renew(leases)
        self._history.write("renewed", asked=asked, tokens=sorted(renewal.alive))
        return renewal

    async def reap(self) -> int:
        """See `Bus.reap`."""
        if count := await self._inner.reap():
            self._history.write("reaped", events=count)
        return count

    async def wait(self, streams: Collection[str], at_most: timedelta) -> None:
        """See `Bus.wait`."""
        await self._inner.wait(streams, at_most)

    async def close(self) -> None:
        """See `Bus.close`."""
        await self._inner.close()

    def _write(self, what: str, outcomes: Mapping[int, Mapping[str, str]], began: int) -> None:
        for token, positions in outcomes.items():
            self._history.write(what, token=token, began=began, outcomes=positions)


def _outcomes(transaction: Transaction) -> dict[int, dict[str, str]]:
    """Return the outcomes of a transaction by token and position."""
    outcomes: dict[int, dict[str, str]] = defaultdict(dict)
    for settled in transaction.changes.settlements.values():
        outcomes[settled.token][str(settled.position)] = type(settled.outcome).__name__.lower()
    return outcomes
