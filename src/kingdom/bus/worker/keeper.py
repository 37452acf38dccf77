"""Renew leases in a separate thread, so that a handler that blocks the event loop cannot prevent it."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from kingdom.bus.port import Bus
from kingdom.errors import KingdomError

# A lease counts as lost when only this share of its length is left.
MARGIN_SHARE = 0.1
# A failed renewal is tried again after this time, or after half the margin if that is shorter.
_PAUSE_SECONDS = 0.5
# A handler is cancelled at its deadline. If it still runs this long afterwards, it blocks the loop, and its lease is
# no longer renewed.
_DEADLINE_GRACE_SECONDS = 1.0
_SHORTEST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.01, 1.0
_log = structlog.get_logger("kingdom.bus")


@dataclass(slots=True)
class HeldLease:
    """A lease of this process, and the deadline of each running handler by its position.

    Times are on the local monotonic clock. `asked_at` is the time of the last attempt to renew the lease.
    """

    token: int
    length: timedelta
    renewed_at: float
    asked_at: float = 0.0
    deadlines: dict[int, float] = field(default_factory=dict)

    @property
    def lost_at(self) -> float:
        """Return the time from which the lease counts as lost."""
        return self.renewed_at + self.length.total_seconds() * (1 - MARGIN_SHARE)

    @property
    def due_at(self) -> float:
        """Return the time of the next renewal: at half the length of the lease, or shortly after a failed renewal."""
        seconds = self.length.total_seconds()
        return max(self.renewed_at + seconds / 2, self.asked_at + min(_PAUSE_SECONDS, seconds * MARGIN_SHARE / 2))

    def is_overdue(self, now: float) -> bool:
        """Return whether a handler still runs after its deadline and the grace time."""
        return any(now > deadline + _DEADLINE_GRACE_SECONDS for deadline in list(self.deadlines.values()))


class LeaseKeeper:
    """Renews every lease after half its length, and reports lost leases and cancelled events.

    The thread may hang in a renewal, so the worker itself checks for expired leases.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        on_lost: Callable[[frozenset[int]], None],
        on_cancelled: Callable[[frozenset[int]], None],
    ) -> None:
        self._bus = bus
        self._on_lost = on_lost
        self._on_cancelled = on_cancelled
        self._leases: dict[int, HeldLease] = {}
        self._lock = threading.Lock()
        self._changed = threading.Event()
        # When the thread wakes by itself. Only a lease that is due earlier must wake it.
        self._wakes_at = math.inf
        self._stopped = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="kingdom-lease-keeper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Return whether the thread is alive."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the thread."""
        self._stopped = True
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join()

    def keep(self, lease: HeldLease) -> None:
        """Renew a lease from now on."""
        with self._lock:
            self._leases[lease.token] = lease
            must_wake = lease.due_at < self._wakes_at
        if must_wake:
            self._changed.set()

    def drop(self, token: int) -> None:
        """Stop renewing a lease."""
        with self._lock:
            self._leases.pop(token, None)

    def _run(self) -> None:
        while not self._stopped:
            with self._lock:
                leases = list(self._leases.values())
            if leases:
                try:
                    self._renew_due(leases, time.monotonic())
                except Exception:  # noqa: BLE001 - no error may end the renewal
                    _log.exception("leases not renewed, trying again")
            self._changed.wait(self._plan_wake())
            self._changed.clear()

    def _plan_wake(self) -> float:
        """Return the seconds until the next renewal, but at most one: handlers past their deadline must be noticed."""
        now = time.monotonic()
        with self._lock:
            next_due = min((lease.due_at for lease in self._leases.values()), default=now + _LONGEST_WAIT_SECONDS)
            self._wakes_at = now + min(max(next_due - now, _SHORTEST_WAIT_SECONDS), _LONGEST_WAIT_SECONDS)
            return self._wakes_at - now

    def _renew_due(self, leases: list[HeldLease], now: float) -> None:
        overdue = {lease.token for lease in leases if lease.is_overdue(now)}
        due = [lease for lease in leases if lease.token not in overdue and now >= lease.due_at]
        lost = overdue | (self._renew(due) if due else set())
        if lost:
            for token in lost:
                self.drop(token)
            self._on_lost(frozenset(lost))

    def _renew(self, due: list[HeldLease]) -> set[int]:
        """Renew leases. Return the tokens of lost leases, which the store no longer has."""
        for lease in due:
            lease.asked_at = time.monotonic()
        try:
            renewal = self._bus.renew({lease.token: lease.length for lease in due})
        except KingdomError as error:
            if not self._failing:
                _log.warning("leases not renewed, trying again", leases=len(due), error=str(error))
            self._failing = True
            return set()
        self._failing = False
        for lease in due:
            if lease.token in renewal.alive:
                lease.renewed_at = lease.asked_at
        if renewal.cancelled:
            self._on_cancelled(renewal.cancelled)
        return {lease.token for lease in due} - renewal.alive
