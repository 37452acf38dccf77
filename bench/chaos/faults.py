"""Faults in the environment of the processes under test: the server, its connections, the disk and the clock."""

import asyncio
import errno
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from bench.chaos.controls import Controls
from bench.postgres import PrivateBouncer, PrivateCluster
from bench.proxy import FaultyProxy
from kingdom.verify.nemesis import ExtraFault, Nemesis

_LOOK_EVERY_SECONDS = 0.02
# How long to wait until a process runs into a prepared fault.
_TRAP_SECONDS = 5.0
_CLOCK_STEP_SECONDS_MAX = 20.0
# A server that restarts this soon is down for less than a lease, except sometimes on a busy machine.
_AWAY_SECONDS_MAX = 1.5
_Result = TypeVar("_Result")
_READ_ONLY = "default_transaction_read_only"


class ServerFaults:
    """The faults of a server, of its bouncer and of the connections to both."""

    def __init__(self, cluster: PrivateCluster, bouncer: PrivateBouncer, proxy: FaultyProxy) -> None:
        self._cluster = cluster
        self._bouncer = bouncer
        self._proxy = proxy
        self._active: set[object] = set()

    def all(self) -> Sequence[ExtraFault]:
        """Return the faults with their weights."""
        return (
            ExtraFault(kind="server_killed", weight=1, strike=self._kill_server),
            ExtraFault(kind="read_only", weight=1, strike=self._forbid_writing),
            ExtraFault(kind="bouncer_killed", weight=2, strike=self._kill_bouncer),
            ExtraFault(kind="half_open", weight=1, strike=self._leave_half_open),
            ExtraFault(kind="slow", weight=2, strike=self._slow_down),
            ExtraFault(kind="cut_in_answer", weight=4, strike=self._cut_in_answer),
        )

    async def _kill_server(self, nemesis: Nemesis) -> bool:
        how = nemesis.rng.choice((signal.SIGKILL, signal.SIGQUIT))
        away = nemesis.rng.uniform(0, _AWAY_SECONDS_MAX)

        def crash_and_restart() -> None:
            self._cluster.crash(how)
            time.sleep(away)
            self._cluster.restart()

        return await self._one_at_a_time(self._cluster, crash_and_restart)

    async def _forbid_writing(self, nemesis: Nemesis) -> bool:
        seconds = nemesis.rng.uniform(0.2, _AWAY_SECONDS_MAX)

        def forbid_and_allow() -> None:
            self._cluster.configure(_READ_ONLY, "on")
            time.sleep(seconds)
            self._cluster.configure(_READ_ONLY, None)

        return await self._one_at_a_time(self._cluster, forbid_and_allow)

    async def _kill_bouncer(self, nemesis: Nemesis) -> bool:
        away = nemesis.rng.uniform(0, _AWAY_SECONDS_MAX)

        def crash_and_restart() -> None:
            self._bouncer.crash()
            time.sleep(away)
            self._bouncer.restart()

        return await self._one_at_a_time(self._bouncer, crash_and_restart)

    async def _leave_half_open(self, nemesis: Nemesis) -> bool:
        """Stop forwarding for up to 1.3 leases, then drop the connections."""
        if not self._proxy.freeze():
            return False
        try:
            await asyncio.sleep(nemesis.lease_seconds * nemesis.rng.uniform(0.1, 1.3))
        finally:
            self._proxy.drop_frozen()
        return True

    async def _slow_down(self, nemesis: Nemesis) -> bool:
        if self._proxy.delay_seconds:
            return False
        self._proxy.delay_seconds = nemesis.rng.uniform(0.01, 0.1)
        try:
            await asyncio.sleep(nemesis.lease_seconds * nemesis.rng.uniform(0.1, 0.5))
        finally:
            self._proxy.delay_seconds = 0.0
        return True

    async def _cut_in_answer(self, nemesis: Nemesis) -> bool:
        before = self._proxy.cuts
        self._proxy.cut_next_answer(nemesis.rng.random())
        try:
            return await _becomes_true(lambda: self._proxy.cuts > before)
        finally:
            self._proxy.cut_next_answer(None)

    async def _one_at_a_time(self, victim: object, fault: Callable[[], None]) -> bool:
        """Run a blocking fault in a thread to its end. Return False if the victim already has a fault."""
        if victim in self._active:
            return False
        self._active.add(victim)
        try:
            await run_to_end(fault)
        finally:
            self._active.discard(victim)
        return True


def clock_faults(controls: Controls, *, one_host: bool) -> Sequence[ExtraFault]:
    """Return faults that step the clock: of all processes if they share a host, else of one process."""

    def step(sign: int) -> Callable[[Nemesis], Awaitable[bool]]:
        async def strike(nemesis: Nemesis) -> bool:
            victim = nemesis.choose_victim()
            if victim is None:
                return False
            slots = [member.slot for member in nemesis.fleet.members] if one_host else [victim.slot]
            controls.set_clocks(slots, sign * nemesis.rng.uniform(1, _CLOCK_STEP_SECONDS_MAX))
            try:
                await asyncio.sleep(nemesis.lease_seconds * nemesis.rng.uniform(0.5, 2))
            finally:
                controls.set_clocks(slots, 0)
            return True

        return strike

    return (
        ExtraFault(kind="clock_forward", weight=1, strike=step(+1)),
        ExtraFault(kind="clock_back", weight=1, strike=step(-1)),
    )


def disk_faults(controls: Controls) -> Sequence[ExtraFault]:
    """Return disk faults: full, failing to sync or read-only for a while, and a death during a checkpoint."""

    def fail_with(code: int) -> Callable[[Nemesis], Awaitable[bool]]:
        async def strike(nemesis: Nemesis) -> bool:
            if controls["disk_error"]:
                return False
            with _set(controls, "disk_error", code):
                await asyncio.sleep(nemesis.lease_seconds * nemesis.rng.uniform(0.05, 0.5))
            return True

        return strike

    async def die_in_checkpoint(nemesis: Nemesis) -> bool:
        with _set(controls, "checkpoint_death", nemesis.rng.randint(1, 3)):
            return await _becomes_true(lambda: not controls["checkpoint_death"])

    return (
        ExtraFault(kind="disk_full", weight=1, strike=fail_with(errno.ENOSPC)),
        ExtraFault(kind="disk_failed_to_sync", weight=1, strike=fail_with(errno.EIO)),
        ExtraFault(kind="disk_read_only", weight=1, strike=fail_with(errno.EROFS)),
        ExtraFault(kind="killed_in_checkpoint", weight=1, strike=die_in_checkpoint),
    )


async def run_to_end(blocking: Callable[[], _Result]) -> _Result:
    """Run blocking code in a thread, and wait for its end even if cancelled."""
    running = asyncio.ensure_future(asyncio.to_thread(blocking))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        running.result()
        raise


@contextmanager
def _set(controls: Controls, name: str, value: int) -> Iterator[None]:
    controls[name] = value
    try:
        yield
    finally:
        controls[name] = 0


async def _becomes_true(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + _TRAP_SECONDS
    while time.monotonic() < end:
        if condition():
            return True
        await asyncio.sleep(_LOOK_EVERY_SECONDS)
    return False
