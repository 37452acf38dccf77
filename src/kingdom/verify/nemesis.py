"""The nemesis: kills, stops past the lease, and cuts connections, at random but by a seed."""

import asyncio
import contextlib
import random
import signal
import time

from kingdom.bus.throwaway import ThrowawayStore
from kingdom.errors import KingdomError
from kingdom.verify.fleet import Fleet, Member
from kingdom.verify.history import History

# Workers are what the promises are about; publishers must not get away either.
_WEIGHTS = {"worker": 3, "publisher": 1}


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
        self._wakings: set[asyncio.Task[None]] = set()

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
        victim = self._victim()
        # Kills and stops cost leases: much more of them, and a healthy event loses three in a row by mere chance.
        match self._rng.choices(("kill", "stop", "pause", "cut", "cut_all"), (2, 2, 2, 4, 1))[0]:
            case "kill" if victim:
                self._kill(victim)
            case "stop" if victim:
                # Past the lease, and past the moment at which others take over.
                self._stop(victim, "stop", self._lease_seconds * self._rng.uniform(1.1, 2.2))
            case "pause" if victim:
                self._stop(victim, "pause", self._lease_seconds * self._rng.uniform(0.1, 0.9))
            case "cut_all":
                await self._cut(1_000)
            case _:
                await self._cut(self._rng.randint(1, 5))

    def _kill(self, victim: Member) -> None:
        if self._fleet.send(victim, signal.SIGKILL):
            self._history.write("fault", kind="kill", process=victim.slot)

    def _stop(self, victim: Member, kind: str, seconds: float) -> None:
        if self._fleet.send(victim, signal.SIGSTOP):
            self._history.write("fault", kind=kind, process=victim.slot, seconds=round(seconds, 2))
            waking = asyncio.create_task(self._wake_after(victim, seconds))
            self._wakings.add(waking)
            waking.add_done_callback(self._wakings.discard)

    async def _cut(self, at_most: int) -> None:
        # On a busy machine the store may not answer in time; that is no fault of ours.
        with contextlib.suppress(KingdomError):
            if count := await self._store.cut_connections(at_most):
                self._history.write("fault", kind="cut", connections=count)

    async def _wake_after(self, member: Member, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if member.stopped:
            self._wake(member)

    def _wake(self, member: Member) -> None:
        if self._fleet.send(member, signal.SIGCONT):
            self._history.write("continued", process=member.slot)

    def _victim(self) -> Member | None:
        candidates = [member for member in self._fleet.members if member.running]
        if not candidates:
            return None
        return self._rng.choices(candidates, [_WEIGHTS[member.role] for member in candidates])[0]
