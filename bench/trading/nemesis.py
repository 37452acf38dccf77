"""Kills workers, the exchange, the push service, the feeder and PostgreSQL, and stops executors."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from bench.postgres import PrivateCluster
from bench.trading.scene import EXCHANGE, FEEDER, PUSH, Scene
from examples.trading.store import TradeStore
from examples.trading.streams import Origin

_SWITCHED = "KRW-ETH"
# Longer than a lease, so that another worker takes over while the sender is stopped.
_STOPPED_SECONDS = 5.0
_DOWN_SECONDS = 1.0
_PAUSE_SECONDS = 0.5


class Nemesis:
    """Injects every fault in random order, again and again until the feeder has ended."""

    def __init__(
        self, scene: Scene, cluster: PrivateCluster, store: TradeStore, workers: Sequence[str], seed: int
    ) -> None:
        self._scene = scene
        self._cluster = cluster
        self._store = store
        self._workers = list(workers)
        self._random = random.Random(seed)
        self._switch_is_on = False
        self._resumptions: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        """Inject each fault at least once, and continue until every signal is recorded."""
        while not self._has_fed() or not self.counts:
            acts = [*self._acts()]
            self._random.shuffle(acts)
            for name, act in acts:
                if self._has_fed() and self.counts[name]:
                    continue
                self.counts[name] += 1
                await act()
                await asyncio.sleep(_PAUSE_SECONDS)
        await self._switch(is_on=False)
        await asyncio.gather(*self._resumptions)

    def _acts(self) -> Sequence[tuple[str, Callable[[], Awaitable[None]]]]:
        return (
            *(("worker killed", self._kill_worker),) * 2,
            ("worker stopped", self._stop_worker),
            ("exchange killed", lambda: self._kill(EXCHANGE)),
            ("push service killed", lambda: self._kill(PUSH)),
            ("feeder killed", self._kill_feeder),
            ("postgres killed", self._kill_postgres),
            ("kill switch", lambda: self._switch(is_on=not self._switch_is_on)),
        )

    def _has_fed(self) -> bool:
        return self._scene.exit_code(FEEDER) == 0

    async def _kill(self, name: str) -> None:
        self._scene.kill(name)
        await asyncio.sleep(_DOWN_SECONDS * self._random.random())
        self._scene.start(name)
        await self._scene.until_ready(name)

    async def _kill_worker(self) -> None:
        # Each in turn, so that every one is killed.
        self._workers.append(self._workers.pop(0))
        self._scene.kill(self._workers[-1])
        self._scene.start(self._workers[-1])

    async def _stop_worker(self) -> None:
        # A push service executes every call, so only a worker that does not push is stopped.
        name = next((name for name in self._workers if name.startswith("executor")), None)
        if name is None:
            return
        self._scene.stop(name)

        async def resume_later() -> None:
            await asyncio.sleep(_STOPPED_SECONDS)
            self._scene.resume(name)

        # Other faults are injected while the worker is stopped.
        self._resumptions.add(asyncio.create_task(resume_later()))

    async def _kill_feeder(self) -> None:
        if not self._has_fed():
            self._scene.kill(FEEDER)
            self._scene.start(FEEDER)

    async def _kill_postgres(self) -> None:
        await asyncio.to_thread(self._cluster.crash)
        await asyncio.to_thread(self._cluster.restart)

    async def _switch(self, *, is_on: bool) -> None:
        self._switch_is_on = is_on
        origin = Origin(owner_id="OWNER", market=_SWITCHED)
        event = origin.envelope("SetKillSwitch", "Market", _SWITCHED, {"market": _SWITCHED, "on": is_on})
        await insist(lambda: self._store.bus.publish(event))


async def insist(act: Callable[[], Awaitable[object]]) -> None:
    """Do something until it succeeds, because the database may be restarting."""
    while True:
        try:
            await act()
        except Exception:  # noqa: BLE001 - tried again, and the trial has a limit
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            return
