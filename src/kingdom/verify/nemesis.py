"""The nemesis: kills, stops past the lease, cuts connections or stops who holds the lock, at random but by a seed."""

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from typing import Any

from kingdom.bus.throwaway import ThrowawayStore
from kingdom.errors import KingdomError
from kingdom.verify.fleet import Fleet, Member
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


class Nemesis:
    """Does one fault after another until it is cancelled; everything it stopped runs on afterwards."""

    def __init__(
        self, fleet: Fleet, store: ThrowawayStore, history: History, rng: random.Random, *, lease_seconds: float
    ) -> None:
        self._fleet = fleet
        self._store = store
        self._history = history
        self._rng = rng
        self._lease_seconds = lease_seconds
        self.struck: Counter[str] = Counter()
        self._wakings: set[asyncio.Task[None]] = set()
        self._deck: list[str] = []

    async def torment(self, *, every_seconds: float) -> None:
        """Strike about every so many seconds, also where a strike takes longer than that."""
        due = time.monotonic()
        async with asyncio.TaskGroup() as strikes:
            while True:
                due += self._rng.uniform(0.5, 1.5) * every_seconds
                await asyncio.sleep(due - time.monotonic())
                strikes.create_task(self._strike())

    async def relent(self) -> None:
        """Let every stopped process run on."""
        for waking in self._wakings:
            waking.cancel()
        await asyncio.gather(*self._wakings, return_exceptions=True)
        for member in self._fleet.members:
            if member.stopped:
                self._wake(member)

    async def _strike(self) -> None:
        kind = self._draw()
        if kind.startswith("lock_holder"):
            await self._strike_holder(kind)
            return
        victim = self._victim()
        match kind:
            case "kill" if victim:
                self._kill(victim, kind)
            case "stop" if victim:
                # Past the lease, and past the moment at which others take over.
                self._stop(victim, kind, self._lease_seconds * self._rng.uniform(1.1, 2.2))
            case "pause" if victim:
                self._stop(victim, kind, self._lease_seconds * self._rng.uniform(0.1, 0.9))
            case "cut_all":
                await self._cut(1_000)
            case _:
                await self._cut(self._rng.randint(1, 5))

    async def _strike_holder(self, kind: str) -> None:
        """Hit a process in the middle of a transaction: it dies, comes back soon, or stays away until others act."""
        brief, long = self._rng.uniform(0.02, 0.4), self._lease_seconds * self._rng.uniform(1.1, 2.2)
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

    async def _ambush(self) -> Member | None:
        """Stop a process while it holds the store's lock; None where nobody could be caught in time."""
        end = time.monotonic() + _AMBUSH_SECONDS
        while time.monotonic() < end:
            victim = self._fleet.at_work(self._store.holders())
            if victim and victim.process and self._fleet.send(victim, signal.SIGSTOP):
                await asyncio.sleep(_STOP_ARRIVES_SECONDS)
                if victim.process.pid in self._store.holders():
                    return victim
                self._fleet.send(victim, signal.SIGCONT)
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
        return None

    def _draw(self) -> str:
        """Draw a kind of fault from a deck, so that each comes as often as it should also in a short trial."""
        if not self._deck:
            counts = _FAULTS_AT_A_LOCK if self._store.has_one_writer else _FAULTS
            self._deck = [kind for kind, count in counts.items() for _ in range(count)]
            self._rng.shuffle(self._deck)
        return self._deck.pop()

    def _kill(self, victim: Member, kind: str) -> None:
        if self._fleet.send(victim, signal.SIGKILL):
            self._note(kind, process=victim.slot)

    def _stop(self, victim: Member, kind: str, seconds: float) -> None:
        if self._fleet.send(victim, signal.SIGSTOP):
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

    async def _wake_after(self, member: Member, seconds: float) -> None:
        process = member.process
        await asyncio.sleep(seconds)
        if member.stopped and member.process is process:
            self._wake(member)

    def _wake(self, member: Member) -> None:
        if self._fleet.send(member, signal.SIGCONT):
            self._history.write("continued", process=member.slot)

    def _victim(self) -> Member | None:
        candidates = [member for member in self._fleet.members if member.running]
        if not candidates:
            return None
        return self._rng.choices(candidates, [_WEIGHTS[member.role] for member in candidates])[0]
