"""The nemesis injects faults, chosen at random from a seed: it kills and stops processes and cuts connections.

A bench can add its own faults, such as killing the database server.
"""

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kingdom.errors import KingdomError
from kingdom.trial_store import TrialStore
from kingdom.verify.fleet import Fleet, FleetMember
from kingdom.verify.history import History

# Most faults hit workers, because most promises of the bus are about workers.
_WEIGHTS = {"worker": 3, "publisher": 1, "courier": 1}
# How often a shuffled deck contains each kind of fault. A killed or stopped worker loses its leases. With more kills
# and stops, a healthy event could lose three leases in a row by chance, and the bus would quarantine it.
_FAULTS = {"kill": 2, "stop": 2, "pause": 2, "cut": 4, "cut_all": 1}
# How often the deck contains each kind of fault if the store has a write lock.
_LOCK_FAULTS = {
    "kill": 3,
    "stop": 2,
    "pause": 4,
    "lock_holder_killed": 3,
    "lock_holder_stopped": 1,
    "lock_holder_paused": 8,
}
# Added to the deck if there are couriers. The first word is the role of the victim.
_COURIER_FAULTS = {"courier_killed": 2, "courier_stopped": 2, "publisher_killed": 1, "publisher_stopped": 1}
# How long to wait for a process that holds the lock, and how often to look for it.
_LOCK_WAIT_SECONDS = 2.0
_LOOK_EVERY_SECONDS = 0.001
# The time until a stop signal has taken effect.
_STOP_EFFECT_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraFault:
    """A fault that a bench adds. `weight` is the number of these faults in a shuffled deck.

    `strike` injects the fault and returns whether it hit anything. It always undoes the fault, even if it is cancelled.
    """

    kind: str
    weight: int
    strike: Callable[["Nemesis"], Awaitable[bool]]


class Nemesis:
    """Injects one fault after another until it is cancelled."""

    def __init__(
        self,
        fleet: Fleet,
        store: TrialStore,
        history: History,
        rng: random.Random,
        *,
        lease_seconds: float,
        extra_faults: Sequence[ExtraFault] = (),
    ) -> None:
        self.fleet = fleet
        self._store = store
        self._history = history
        self._extra_faults = {fault.kind: fault for fault in extra_faults}
        self.rng = rng
        self.lease_seconds = lease_seconds
        self.fault_counts: Counter[str] = Counter()
        self._resumptions: set[asyncio.Task[None]] = set()
        self._deck: list[str] = []

    async def run(self, *, every_seconds: float) -> None:
        """Inject a fault about every `every_seconds`, even while an earlier fault lasts."""
        due = time.monotonic()
        async with asyncio.TaskGroup() as strikes:
            while True:
                due += self.rng.uniform(0.5, 1.5) * every_seconds
                await asyncio.sleep(due - time.monotonic())
                strikes.create_task(self._strike())

    async def resume_all(self) -> None:
        """Continue every stopped process."""
        for resumption in self._resumptions:
            resumption.cancel()
        await asyncio.gather(*self._resumptions, return_exceptions=True)
        for member in self.fleet.members:
            if member.stopped:
                self._resume(member)

    async def _strike(self) -> None:
        kind = self._draw()
        if kind.startswith("lock_holder"):
            await self._strike_holder(kind)
            return
        if fault := self._extra_faults.get(kind):
            await self._strike_extra(fault)
            return
        role = kind.partition("_")[0] if kind in _COURIER_FAULTS else None
        victim = self.choose_victim(role)
        match kind:
            case "kill" | "courier_killed" | "publisher_killed" if victim:
                self._kill(victim, kind)
            case "stop" | "courier_stopped" | "publisher_stopped" if victim:
                # The stop is longer than the lease, so that other processes take over.
                self._stop(victim, kind, self.lease_seconds * self.rng.uniform(1.1, 2.2))
            case "pause" if victim:
                self._stop(victim, kind, self.lease_seconds * self.rng.uniform(0.1, 0.9))
            case "cut_all":
                await self._cut("cut_all", 1_000)
            case "courier_killed" | "courier_stopped" | "publisher_killed" | "publisher_stopped":
                self._deck.insert(0, kind)
            case _:
                await self._cut("cut", self.rng.randint(1, 5))

    async def _strike_extra(self, fault: ExtraFault) -> None:
        began = time.monotonic()
        if await fault.strike(self):
            self._record(fault.kind, seconds=round(time.monotonic() - began, 2))
        else:
            # The fault did not hit anything, so it is tried again before the next shuffle.
            self._deck.insert(0, fault.kind)

    async def _strike_holder(self, kind: str) -> None:
        """Kill a process that holds the write lock, or stop it for a short or a long time."""
        brief, long = self.rng.uniform(0.02, 0.4), self.lease_seconds * self.rng.uniform(1.1, 2.2)
        if (victim := await self._stop_lock_holder()) is None:
            # No process took the lock in time, for example on a busy machine. The next fault is of the same kind.
            self._deck.append(kind)
            return
        match kind:
            case "lock_holder_killed":
                self._kill(victim, kind)
            case "lock_holder_paused":
                self._stop(victim, kind, brief)
            case _:
                self._stop(victim, kind, long)

    async def _stop_lock_holder(self) -> FleetMember | None:
        """Stop a process while it holds the write lock. Return None if no process took the lock in time."""
        end = time.monotonic() + _LOCK_WAIT_SECONDS
        while time.monotonic() < end:
            victim = self.fleet.find_running(self._store.holders())
            if victim and victim.process and self.fleet.send(victim, signal.SIGSTOP):
                await asyncio.sleep(_STOP_EFFECT_SECONDS)
                if victim.process.pid in self._store.holders():
                    return victim
                self.fleet.send(victim, signal.SIGCONT)
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
        return None

    def _draw(self) -> str:
        """Draw a kind of fault from a shuffled deck, so that even a short trial gets each kind in its proportion."""
        if not self._deck:
            counts = _LOCK_FAULTS if self._store.has_one_writer else _FAULTS
            if any(member.role == "courier" for member in self.fleet.members):
                counts = counts | _COURIER_FAULTS
            extra = {fault.kind: fault.weight for fault in self._extra_faults.values()}
            self._deck = [kind for kind, count in {**counts, **extra}.items() for _ in range(count)]
            self.rng.shuffle(self._deck)
        return self._deck.pop()

    def _kill(self, victim: FleetMember, kind: str) -> None:
        if self.fleet.send(victim, signal.SIGKILL):
            self._record(kind, process=victim.slot)

    def _stop(self, victim: FleetMember, kind: str, seconds: float) -> None:
        if self.fleet.send(victim, signal.SIGSTOP):
            self._record(kind, process=victim.slot, seconds=round(seconds, 2))
            resumption = asyncio.create_task(self._resume_after(victim, seconds))
            self._resumptions.add(resumption)
            resumption.add_done_callback(self._resumptions.discard)

    async def _cut(self, kind: str, at_most: int) -> None:
        # On a busy machine the store may not respond in time.
        with contextlib.suppress(KingdomError):
            if count := await self._store.cut_connections(at_most):
                self._record(kind, connections=count)

    def _record(self, kind: str, **facts: Any) -> None:
        self.fault_counts[kind] += 1
        self._history.write("fault", kind=kind, **facts)

    async def _resume_after(self, member: FleetMember, seconds: float) -> None:
        process = member.process
        await asyncio.sleep(seconds)
        if member.stopped and member.process is process:
            self._resume(member)

    def _resume(self, member: FleetMember) -> None:
        if self.fleet.send(member, signal.SIGCONT):
            self._history.write("continued", process=member.slot)

    def choose_victim(self, role: str | None = None) -> FleetMember | None:
        """Choose a running process, more often a worker than another one. Return None if no process is running."""
        candidates = [member for member in self.fleet.members if member.running and role in (None, member.role)]
        if not candidates:
            return None
        return self.rng.choices(candidates, [_WEIGHTS[member.role] for member in candidates])[0]
