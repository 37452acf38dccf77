"""The nemesis: kills, stops past the lease, cuts connections or stops who holds the lock, at random but by a seed.

What only a bench can do, such as killing the server, it adds as faults of its own.
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

# Workers are what the promises are about; publishers must not get away either.
_WEIGHTS = {"worker": 3, "publisher": 1}
# Kills and stops cost leases: much more of them, and a healthy event loses three in a row by mere chance.
_FAULTS = {"kill": 2, "stop": 2, "pause": 2, "cut": 4, "cut_all": 1}
_FAULTS_AT_A_LOCK = {
    "kill": 3,
    "stop": 2,
    "pause": 4,
    "lock_holder_killed": 3,
    "lock_holder_stopped": 1,
    "lock_holder_paused": 8,
}
# How long to lie in wait for somebody to take the lock, and how long until a stop has surely arrived.
_AMBUSH_SECONDS = 2.0
_LOOK_EVERY_SECONDS = 0.001
_STOP_ARRIVES_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraFault:
    """A fault that a bench adds, drawn as often as its `weight` says.

    `strike` does the fault, undoes it, also where it is cancelled in between, and returns whether it struck anything.
    """

    kind: str
    weight: int
    strike: Callable[["Nemesis"], Awaitable[bool]]


class Nemesis:
    """Does one fault after another until it is cancelled; everything it stopped runs on afterwards."""

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
        self.struck: Counter[str] = Counter()
        self._wakings: set[asyncio.Task[None]] = set()
        self._deck: list[str] = []

    async def torment(self, *, every_seconds: float) -> None:
        """Strike about every so many seconds, also where a strike takes longer than that."""
        due = time.monotonic()
        async with asyncio.TaskGroup() as strikes:
            while True:
                due += self.rng.uniform(0.5, 1.5) * every_seconds
                await asyncio.sleep(due - time.monotonic())
                strikes.create_task(self._strike())

    async def relent(self) -> None:
        """Let every stopped process run on."""
        for waking in self._wakings:
            waking.cancel()
        await asyncio.gather(*self._wakings, return_exceptions=True)
        for member in self.fleet.members:
            if member.stopped:
                self._wake(member)

    async def _strike(self) -> None:
        kind = self._draw()
        if kind.startswith("lock_holder"):
            await self._strike_holder(kind)
            return
        if fault := self._extra_faults.get(kind):
            await self._strike_extra(fault)
            return
        victim = self.victim()
        match kind:
            case "kill" if victim:
                self._kill(victim, kind)
            case "stop" if victim:
                # Past the lease, and past the moment at which others take over.
                self._stop(victim, kind, self.lease_seconds * self.rng.uniform(1.1, 2.2))
            case "pause" if victim:
                self._stop(victim, kind, self.lease_seconds * self.rng.uniform(0.1, 0.9))
            case "cut_all":
                await self._cut(1_000)
            case _:
                await self._cut(self.rng.randint(1, 5))

    async def _strike_extra(self, fault: ExtraFault) -> None:
        began = time.monotonic()
        if await fault.strike(self):
            self._note(fault.kind, seconds=round(time.monotonic() - began, 2))
        else:
            # Its turn comes again before the next deck.
            self._deck.insert(0, fault.kind)

    async def _strike_holder(self, kind: str) -> None:
        """Hit a process in the middle of a transaction: it dies, comes back soon, or stays away until others act."""
        brief, long = self.rng.uniform(0.02, 0.4), self.lease_seconds * self.rng.uniform(1.1, 2.2)
        if (victim := await self._ambush()) is None:
            # On a busy machine nobody may have come in time: the next strike tries the same.
            self._deck.append(kind)
            return
        match kind:
            case "lock_holder_killed":
                self._kill(victim, kind)
            case "lock_holder_paused":
                self._stop(victim, kind, brief)
            case _:
                self._stop(victim, kind, long)

    async def _ambush(self) -> FleetMember | None:
        """Stop a process while it holds the store's lock; None where nobody could be caught in time."""
        end = time.monotonic() + _AMBUSH_SECONDS
        while time.monotonic() < end:
            victim = self.fleet.at_work(self._store.holders())
            if victim and victim.process and self.fleet.send(victim, signal.SIGSTOP):
                await asyncio.sleep(_STOP_ARRIVES_SECONDS)
                if victim.process.pid in self._store.holders():
                    return victim
                self.fleet.send(victim, signal.SIGCONT)
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
        return None

    def _draw(self) -> str:
        """Draw a kind of fault from a deck, so that each comes as often as it should also in a short trial."""
        if not self._deck:
            counts = _FAULTS_AT_A_LOCK if self._store.has_one_writer else _FAULTS
            extra = {fault.kind: fault.weight for fault in self._extra_faults.values()}
            self._deck = [kind for kind, count in {**counts, **extra}.items() for _ in range(count)]
            self.rng.shuffle(self._deck)
        return self._deck.pop()

    def _kill(self, victim: FleetMember, kind: str) -> None:
        if self.fleet.send(victim, signal.SIGKILL):
            self._note(kind, process=victim.slot)

    def _stop(self, victim: FleetMember, kind: str, seconds: float) -> None:
        if self.fleet.send(victim, signal.SIGSTOP):
            self._note(kind, process=victim.slot, seconds=round(seconds, 2))
            waking = asyncio.create_task(self._wake_after(victim, seconds))
            self._wakings.add(waking)
            waking.add_done_callback(self._wakings.discard)

    async def _cut(self, at_most: int) -> None:
        # On a busy machine the store may not answer in time; that is no fault of ours.
        with contextlib.suppress(KingdomError):
            if count := await self._store.cut_connections(at_most):
                self._note("cut", connections=count)

    def _note(self, kind: str, **facts: Any) -> None:
        self.struck[kind] += 1
        self._history.write("fault", kind=kind, **facts)

    async def _wake_after(self, member: FleetMember, seconds: float) -> None:
        process = member.process
        await asyncio.sleep(seconds)
        if member.stopped and member.process is process:
            self._wake(member)

    def _wake(self, member: FleetMember) -> None:
        if self.fleet.send(member, signal.SIGCONT):
            self._history.write("continued", process=member.slot)

    def victim(self) -> FleetMember | None:
        """Return a process at work, workers more often than publishers; None where there is none."""
        candidates = [member for member in self.fleet.members if member.running]
        if not candidates:
            return None
        return self.rng.choices(candidates, [_WEIGHTS[member.role] for member in candidates])[0]
