"""The thread that renews leases, on a bus whose renewals the test controls."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from kingdom.bus import Bus, Delivery, Topology, Transaction
from kingdom.bus.port import LeaseRenewal
from kingdom.bus.worker import keeper as keeping_leases
from kingdom.bus.worker.keeper import HeldLease, LeaseKeeper
from kingdom.errors import Unavailable
from kingdom.log_output import configure_logs
from tests.patience import PATIENCE_SECONDS

SHORT = timedelta(milliseconds=200)
LONG = timedelta(hours=1)


class Store(Bus):
    """A bus that can only renew. The test sets which leases it knows, and whether it hangs or is unavailable."""

    def __init__(self) -> None:
        super().__init__(Topology([]), [])
        self.alive = {1, 2, 3}
        self.cancelled = frozenset[int]()
        self.reachable = True
        self.blocked = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.asked: list[dict[int, timedelta]] = []

    def renew(self, leases: Mapping[int, timedelta]) -> LeaseRenewal:
        self.asked.append(dict(leases))
        self.blocked.set()
        assert self.go_on.wait(PATIENCE_SECONDS)
        self.blocked.clear()
        if not self.reachable:
            raise Unavailable("the store is away")
        return LeaseRenewal(frozenset(self.alive & leases.keys()), self.cancelled)

    def transaction(
        self, hold: Sequence[Delivery] = (), *, optimistic: bool = False
    ) -> AbstractAsyncContextManager[Transaction]:
        raise NotImplementedError

    async def claim(self, stream: str, limit: int, worker: str) -> list[Delivery]:
        raise NotImplementedError

    async def reap(self) -> int:
        raise NotImplementedError

    async def wait(self, streams: Collection[str], at_most: timedelta) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class Notes:
    """The reports of the keeper."""

    def __init__(self) -> None:
        self.lost: list[frozenset[int]] = []
        self.cancelled: list[frozenset[int]] = []


@contextmanager
def keeping(store: Store) -> Iterator[tuple[LeaseKeeper, Notes]]:
    notes = Notes()
    keeper = LeaseKeeper(store, on_lost=notes.lost.append, on_cancelled=notes.cancelled.append)
    keeper.start()
    try:
        yield keeper, notes
    finally:
        store.go_on.set()
        keeper.stop()


def lease(token: int, length: timedelta = SHORT, age: timedelta = timedelta()) -> HeldLease:
    return HeldLease(token, length, time.monotonic() - age.total_seconds())


def wait_for(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_lease_is_renewed_again_and_again_by_its_length() -> None:
    store = Store()
    with keeping(store) as (keeper, notes):
        held = lease(1)
        began = held.renewed_at
        keeper.keep(held)
        wait_for(lambda: len(store.asked) >= 4)
        assert held.renewed_at > began
    assert store.asked[0] == {1: SHORT}
    assert notes.lost == []


def test_a_lease_is_renewed_at_half_its_length_and_not_before() -> None:
    assert HeldLease(1, LONG, renewed_at=1000.0).due_at == 1000.0 + 30 * 60
    store = Store()
    with keeping(store) as (keeper, _):
        keeper.keep(lease(1, LONG))
        keeper.keep(lease(2, LONG, age=timedelta(minutes=59)))
        wait_for(lambda: bool(store.asked))
    assert store.asked == [{2: LONG}]


def test_the_keeper_wakes_for_the_lease_that_is_due_first() -> None:
    keeper = LeaseKeeper(Store(), on_lost=Notes().lost.append, on_cancelled=Notes().cancelled.append)
    keeper.keep(lease(1, LONG))
    keeper.keep(lease(2, SHORT))
    assert keeper._plan_wake() <= SHORT.total_seconds() / 2


def test_a_lease_that_the_store_does_not_know_any_more_is_lost() -> None:
    store = Store()
    store.alive = {1, 3}
    with keeping(store) as (keeper, notes):
        keeper.keep(lease(1))
        keeper.keep(lease(2))
        wait_for(lambda: bool(notes.lost))
        asked = len(store.asked)
        wait_for(lambda: len(store.asked) > asked)
    assert notes.lost == [frozenset({2})]
    assert all(2 not in leases for leases in store.asked[asked:])


def test_an_outage_of_the_store_within_the_lease_loses_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping_leases, "_PAUSE_SECONDS", 0.01)
    store = Store()
    store.reachable = False
    with keeping(store) as (keeper, notes):
        keeper.keep(lease(1, LONG, age=timedelta(minutes=40)))
        wait_for(lambda: len(store.asked) >= 2)
        store.reachable = True
        asked = len(store.asked)
        wait_for(lambda: len(store.asked) > asked)
    assert notes.lost == []


def test_an_unavailable_store_is_polled_slowly_and_one_outage_is_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = HeldLease(1, LONG, renewed_at=0.0, asked_at=3000.0)
    assert asked.due_at == 3000.5
    monkeypatch.setattr(keeping_leases, "_PAUSE_SECONDS", 0.01)
    configure_logs(json=True, level=logging.WARNING)
    store = Store()
    store.reachable = False
    with capture_logs() as reported, keeping(store) as (keeper, _):
        keeper.keep(lease(1, LONG, age=timedelta(minutes=40)))
        wait_for(lambda: len(store.asked) >= 2)
    assert [entry["log_level"] for entry in reported] == ["warning"]


def test_a_renewed_lease_runs_from_the_moment_of_the_request() -> None:
    store = Store()
    store.go_on.clear()
    with keeping(store) as (keeper, _):
        held = lease(1, LONG, age=timedelta(minutes=40))
        keeper.keep(held)
        assert store.blocked.wait(PATIENCE_SECONDS)
        asked_by = time.monotonic()
        store.go_on.set()
        wait_for(lambda: held.renewed_at > asked_by - 60)
        assert held.renewed_at <= asked_by


def test_a_lease_whose_handler_is_far_beyond_its_deadline_is_given_up() -> None:
    store = Store()
    with keeping(store) as (keeper, notes):
        late, fine = lease(1, LONG), lease(2, LONG)
        late.deadlines = {10: time.monotonic() + 3600, 11: time.monotonic() - 60}
        fine.deadlines = {12: time.monotonic() + 3600}
        keeper.keep(late)
        keeper.keep(fine)
        wait_for(lambda: bool(notes.lost))
    assert notes.lost == [frozenset({1})]
    assert store.asked == []


def test_a_handler_is_overdue_only_a_second_after_its_deadline() -> None:
    held = lease(1)
    held.deadlines = {10: 100.0}
    assert not held.is_overdue(100.9)
    assert held.is_overdue(101.1)


def test_cancellations_are_reported_as_they_are_seen() -> None:
    store = Store()
    store.cancelled = frozenset({77})
    with keeping(store) as (keeper, notes):
        keeper.keep(lease(1))
        wait_for(lambda: bool(notes.cancelled))
    assert set(notes.cancelled) == {frozenset({77})}
    assert notes.lost == []


def test_a_dropped_lease_is_not_renewed() -> None:
    store = Store()
    with keeping(store) as (keeper, notes):
        keeper.keep(lease(1))
        keeper.keep(lease(2))
        wait_for(lambda: any(1 in leases for leases in store.asked))
        keeper.drop(1)
        asked = len(store.asked)
        # One renewal may have been running.
        wait_for(lambda: len(store.asked) > asked + 2)
        assert all(1 not in leases for leases in store.asked[asked + 1 :])
    assert notes.lost == []


def test_stopping_ends_the_thread() -> None:
    with keeping(Store()) as (keeper, _):
        keeper.keep(lease(1))
    assert "kingdom-lease-keeper" not in {thread.name for thread in threading.enumerate()}
