"""The worker: it claims events, runs their handlers, renews leases and stops gracefully."""

import asyncio
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import structlog

from kingdom.bus.cancellation import fail_on_stray_cancellation
from kingdom.bus.delivery import Delivery
from kingdom.bus.port import Bus
from kingdom.bus.worker.claim_schedule import ClaimSchedule, jitter
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.bus.worker.execution import GROUP_SECONDS, Execution
from kingdom.bus.worker.hint_listener import HintListener
from kingdom.bus.worker.keeper import MARGIN_SHARE, HeldLease, LeaseKeeper
from kingdom.bus.worker.unit import Unit, join_into_groups, split_by_key
from kingdom.errors import KingdomError, Misconfigured
from kingdom.failure_log import log_failure

if TYPE_CHECKING:
    from kingdom.bus.metrics import WorkerMetrics

# At most this many reactions share a transaction. A claim returns as many by default, so one transaction is enough.
GROUP_SIZE = 200
# A claim takes only as many events as this process can handle in about this time, and leaves the rest to others.
_CLAIM_SECONDS = 1.0
_UNAVAILABLE_PAUSE_SECONDS = 1.0
_GUARD_SECONDS_MIN = 0.01
# A stopping worker waits this long for a claim in progress. If the claim is answered later, its events return when
# their lease ends.
_LAST_CLAIM_SECONDS = 20.0
_log = structlog.get_logger("kingdom.bus")


class Runnable(Protocol):
    """Something that runs in a process until it is stopped, such as a worker."""

    async def run(self) -> None:
        """Run until stopped."""

    def stop(self, *, at_once: bool = False) -> None:
        """Ask it to end. If `at_once` is true, cancel its current work."""


class Worker:
    """Handles the events of some streams until it is stopped.

    The deliveries of a lease are divided into units. Each unit runs in its own task.
    """

    def __init__(
        self,
        bus: Bus,
        dispatcher: Dispatcher,
        streams: Sequence[str],
        *,
        name: str | None = None,
        concurrency: int = 16,
        batch: int = 200,
        poll: timedelta = timedelta(milliseconds=250),
        grace: timedelta = timedelta(seconds=30),
        metrics: "WorkerMetrics | None" = None,
        timeout: Callable[[float], asyncio.Timeout] = asyncio.timeout,
    ) -> None:
        if not streams:
            raise Misconfigured("a worker needs at least one stream")
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self._bus = bus
        self._streams = [bus.topology.stream(stream).name for stream in streams]
        self._concurrency = concurrency
        self._batch = batch
        self._schedule = ClaimSchedule(self._streams, poll.total_seconds())
        self._hints = HintListener(bus, self._note_hint)
        self._shortest_lease = min(bus.topology.stream(stream).lease for stream in streams).total_seconds()
        self._grace = grace
        if metrics is None:
            # Import this late, because a process that only publishes needs no metrics.
            from kingdom.bus.metrics import WorkerMetrics  # noqa: PLC0415 - loaded on demand

            metrics = WorkerMetrics()
        self._metrics = metrics
        self._execution = Execution(bus, dispatcher, self._metrics, timeout)
        self._units: dict[Unit, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        # How many units of each lease have not ended.
        self._lease_units: dict[int, int] = {}
        self._keeper: LeaseKeeper | None = None
        self._stops_at_once = False

    async def run(self) -> None:
        """Work until `stop` is called, then finish running handlers and release the other deliveries."""
        loop = asyncio.get_running_loop()
        self._keeper = LeaseKeeper(
            self._bus,
            on_lost=lambda tokens: _from_thread(loop, self._lose, tokens),
            on_cancelled=lambda positions: _from_thread(loop, self._cancel, positions),
        )
        self._keeper.start()
        reaper = asyncio.create_task(self._reap_forever(), name="kingdom-reaper")
        guard = asyncio.create_task(self._guard_leases(), name="kingdom-lease-guard")
        try:
            await self._fetch_until_stopped(reaper, guard)
        finally:
            reaper.cancel()
            await asyncio.gather(reaper, return_exceptions=True)
            await self._drain()
            guard.cancel()
            await asyncio.gather(guard, return_exceptions=True)
            # Wait in a thread, because the keeper may be in the middle of a renewal.
            await asyncio.to_thread(self._keeper.stop)

    def stop(self, *, at_once: bool = False) -> None:
        """Ask the worker to end. If `at_once`, cancel its handlers. A signal handler of the loop may call this."""
        self._stopping.set()
        self._changed.set()
        if at_once:
            self._stop_all_units()

    async def _fetch_until_stopped(self, *background: asyncio.Task[None]) -> None:
        """Fetch events until `stop` is called, then wait a limited time for the last claim.

        The worker also stops if a background task ends, because some events would never be delivered without it.
        """
        fetching = asyncio.create_task(self._fetch_forever(), name="kingdom-fetcher")
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({fetching, stopped, *background}, return_when=asyncio.FIRST_COMPLETED)
            broken = next((task for task in background if task.done() and not self._stopping.is_set()), None)
            self._stopping.set()
            self._stop_waiting_units()
            done, _ = await asyncio.wait({fetching}, timeout=_LAST_CLAIM_SECONDS)
            if not done:
                _log.warning("the last claim did not return, abandoned")
        finally:
            stopped.cancel()
            fetching.cancel()
            try:
                await asyncio.wait({fetching, stopped})
            finally:
                await self._hints.close()
        if broken:
            cause = None if broken.cancelled() else broken.exception()
            raise KingdomError(
                f"worker {self.name} stops because its {broken.get_name()} has ended; start the worker again"
            ) from cause
        if not fetching.cancelled():
            fetching.result()

    async def _fetch_forever(self) -> None:
        while not self._stopping.is_set():
            try:
                with fail_on_stray_cancellation("a claim"):
                    await self._claim_round()
                    await self._wait_for_hint()
            except Exception as error:  # noqa: BLE001 - no error may end the fetching
                log_failure(_log, "claim failed, trying again", error)
                await self._pause(_UNAVAILABLE_PAUSE_SECONDS)

    async def _claim_round(self) -> None:
        """Claim from every due stream once. Each round starts with another stream."""
        self._streams.append(self._streams.pop(0))
        # A change during the claims sets the flag again, so the wait after them ends.
        self._changed.clear()
        for stream in list(self._streams):
            now = time.monotonic()
            if self._schedule.is_due(stream, now) and self._has_room(stream) and not self._stopping.is_set():
                # Postpone the stream before the claim, so that a hint during the claim still counts.
                self._schedule.postpone(stream, now)
                await self._fetch(stream)

    async def _fetch(self, stream: str) -> bool:
        """Claim from a stream and start the deliveries. Return whether there were deliveries."""
        asked_at, limit = time.monotonic(), self._limit(stream)
        deliveries = await self._bus.claim(stream, limit, self.name)
        if not deliveries:
            return False
        lease = HeldLease(deliveries[0].token, self._bus.topology.stream(stream).lease, asked_at)
        suspect = deliveries[0].suspect
        if suspect and self._units:
            # A suspect has lost a lease before, perhaps because it crashes workers. It must run alone: if another event
            # crashed the worker now, the suspect would be blamed for it.
            await self._execution.release(Unit(lease, deliveries, calls_outside=False))
            await self._until_idle(unless_stopping=True)
            return not self._stopping.is_set() and await self._fetch(stream)
        self._start(lease, deliveries)
        if suspect:
            await self._until_idle(unless_stopping=True)
        elif len(deliveries) >= limit:
            # More events may be due. The next claim begins before the handlers of these events block the loop.
            self._schedule.hint(stream)
        return True

    def _start(self, lease: HeldLease, deliveries: list[Delivery]) -> None:
        if self._keeper:
            self._keeper.keep(lease)
        reacting: list[list[Delivery]] = []
        calling: list[list[Delivery]] = []
        effects = self._execution.effect_types(deliveries)
        for of_key in split_by_key(deliveries):
            (calling if any(each.envelope.type in effects for each in of_key) else reacting).append(of_key)
        units = [
            Unit(lease, group, calls_outside=False)
            for group in join_into_groups(reacting, self._group_size(deliveries[0].stream))
        ]
        units += [Unit(lease, of_key, calls_outside=True) for of_key in calling]
        self._lease_units[lease.token] = len(units)
        for unit in units:
            # Keep a reference to the task, because asyncio does not protect a waiting task from garbage collection.
            self._units[unit] = asyncio.create_task(self._run_unit(unit), name=f"kingdom-unit-{lease.token}")
        self._give_slots()

    async def _run_unit(self, unit: Unit) -> None:
        try:
            unit.adopt_task()
            await unit.slot.wait()
            while True:
                try:
                    await self._execution.run(unit)
                    break
                except asyncio.CancelledError:
                    if unit.lost or unit.stopped or not unit.cancelled:
                        raise
                    # An operator cancelled the running event. Run the unit again: this ends the event as DEAD.
                    unit.uncancel()
        except asyncio.CancelledError:
            if not unit.lost:
                await self._execution.release(unit)
        except Exception:  # noqa: BLE001 - no error may end the worker
            # Only a bug leads here. When the other units of the lease have ended, it is no longer renewed. Then it
            # expires, and the events return to their stream.
            _log.exception("unit failed", deliveries=len(unit.open))
        finally:
            self._finished(unit)

    def _finished(self, unit: Unit) -> None:
        del self._units[unit]
        token = unit.lease.token
        self._lease_units[token] -= 1
        if not self._lease_units[token]:
            del self._lease_units[token]
            if self._keeper:
                self._keeper.drop(token)
        self._give_slots()
        if self._has_room(unit.stream):
            self._changed.set()

    def _give_slots(self) -> None:
        """Start as many units as there are slots, in their order, and at least one unit of each stream.

        Therefore slow calls of one stream do not delay another stream.
        """
        running = Counter(unit.stream for unit in self._units if unit.slot.is_set())
        count = running.total()
        for unit in self._units:
            if not unit.slot.is_set() and (count < self._concurrency or not running[unit.stream]):
                unit.slot.set()
                running[unit.stream] += 1
                count += 1

    async def _drain(self) -> None:
        """Release the units that have not started, and wait for the others. Cancel units that take too long."""
        self._stop_waiting_units()
        try:
            async with asyncio.timeout(0 if self._stops_at_once else self._grace.total_seconds()):
                await self._until_idle()
        except TimeoutError:
            self._stop_all_units()
            await self._until_idle()

    def _stop_waiting_units(self) -> None:
        for unit in list(self._units):
            if not unit.slot.is_set():
                unit.stop()

    def _stop_all_units(self) -> None:
        """Cancel every handler and release its unsettled deliveries."""
        _log.warning("handlers cancelled", units=len(self._units))
        self._stops_at_once = True
        for unit in list(self._units):
            unit.stop()

    async def _guard_leases(self) -> None:
        """Give up expired leases, even while their renewal hangs.

        This method returns only if the thread that renews the leases has died.
        """
        while self._keeper and self._keeper.is_running:
            await asyncio.sleep(max(self._shortest_lease * MARGIN_SHARE / 4, _GUARD_SECONDS_MIN))
            try:
                self._give_up_expired()
            except Exception as error:  # noqa: BLE001 - no error may end the guard
                log_failure(_log, "guarding leases failed, trying again", error)

    def _give_up_expired(self) -> None:
        now = time.monotonic()
        if expired := frozenset(unit.lease.token for unit in self._units if unit.lease.lost_at <= now):
            for token in expired:
                if self._keeper:
                    self._keeper.drop(token)
            self._lose(expired)

    async def _reap_forever(self) -> None:
        # Check this flag too, because a cancellation can be lost while the task waits for a connection.
        while not self._stopping.is_set():
            try:
                with fail_on_stray_cancellation("the reaper"):
                    if count := await self._bus.reap():
                        _log.warning("deliveries of lost leases returned", deliveries=count)
            except Exception as error:  # noqa: BLE001 - without a reaper the events of lost leases would be stuck
                log_failure(_log, "reaping failed, trying again", error)
            await self._pause(self._shortest_lease / 3)

    def _lose(self, tokens: frozenset[int]) -> None:
        """Cancel the units of lost leases."""
        for unit in list(self._units):
            if unit.lease.token in tokens and not unit.lost:
                unit.lost = True
                for delivery in unit.open.values():
                    self._metrics.count_lost(delivery)
                unit.cancel()

    def _cancel(self, positions: frozenset[int]) -> None:
        """Cancel events on request of an operator."""
        for unit in list(self._units):
            wanted = (positions & unit.open.keys()) - unit.cancelled
            unit.cancelled |= wanted
            if unit.running in wanted:
                unit.cancel()

    def _limit(self, stream: str) -> int:
        """Return how many events to claim from a stream."""
        # If other streams use all slots, this stream still gets one slot.
        slots = 1 if self._is_full() else self._concurrency
        seconds = self._metrics.seconds_per_event.get(stream)
        if seconds is None:
            return min(slots, self._batch)
        affordable = int(_CLAIM_SECONDS / max(seconds, 1e-6)) * slots
        return max(1, min(self._batch, max(affordable, self._concurrency - len(self._units))))

    def _group_size(self, stream: str) -> int:
        """Return how many reactions share a transaction. Groups of slow reactions are smaller."""
        seconds = self._metrics.seconds_per_event.get(stream, 0.0)
        return max(1, min(GROUP_SIZE, int(GROUP_SECONDS / max(seconds, 1e-6))))

    def _is_full(self) -> bool:
        # While the store settles one batch and the handlers of another run, a third can be claimed.
        return len(self._units) >= self._concurrency or sum(len(each.open) for each in self._units) > 2 * self._batch

    def _has_room(self, stream: str) -> bool:
        """Return whether to claim more events: the worker is not full, or it has no events of this stream."""
        return not self._is_full() or all(unit.stream != stream for unit in self._units)

    async def _until_idle(self, *, unless_stopping: bool = False) -> None:
        """Wait until all units have ended. If `unless_stopping`, wait no longer than until the worker stops.

        Meanwhile, this worker waits for no hints, so other processes get them.
        """
        self._hints.listen(())
        while self._units and not (unless_stopping and self._stopping.is_set()):
            self._changed.clear()
            await self._changed.wait()

    async def _wait_for_hint(self) -> None:
        """Wait for a hint about a stream, for the end of a unit, or until a stream must be polled."""
        streams = [stream for stream in self._streams if self._has_room(stream)]
        seconds = self._schedule.seconds_until_due(streams, time.monotonic())
        if self._changed.is_set() or not seconds:
            return
        self._hints.listen(streams)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds if streams else None):
                await self._changed.wait()

    def _note_hint(self, stream: str) -> None:
        self._schedule.hint(stream)
        self._changed.set()

    async def _pause(self, seconds: float) -> None:
        """Sleep for about this time. Return early when the worker stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds * jitter()):
                await self._stopping.wait()


def _from_thread(loop: asyncio.AbstractEventLoop, call: Callable[[frozenset[int]], None], ids: frozenset[int]) -> None:
    """Call a function in the event loop from another thread. Without a loop, the worker has ended too."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call, ids)
