"""Running handlers: reactions together in one transaction, effects one by one through the ledger."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from kingdom.bus.cancellation import unasked_cancellation_fails
from kingdom.bus.delivery import Delivery
from kingdom.bus.dispatcher import Dispatcher, Route
from kingdom.bus.effect import Effect
from kingdom.bus.envelope import current_cause
from kingdom.bus.gate import Gates
from kingdom.bus.keeper import HeldLease
from kingdom.bus.outcome import Dead, Defer, Done, Outcome, Release, Retry, Settlement
from kingdom.bus.perform import must_hold, perform
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.telemetry import handler_span
from kingdom.errors import Conflict, DeadlineExceeded, LeaseLost, Permanent, Transient, Unavailable

if TYPE_CHECKING:
    from kingdom.bus.metrics import WorkerMetrics

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0
# Reruns in process before a conflict counts as a failed attempt.
_CONFLICTS_MAX = 5
_IDLE_SHARE = 0.8
_log = structlog.get_logger("kingdom.bus")


class _MustRunAlone(Exception):
    """A handler failed after it took a dedup key: only a rollback gives the key back."""


@dataclass(slots=True, eq=False)
class Unit:
    """Deliveries of one lease that are handled one after another; each leaves `open` as it is settled or lost."""

    lease: HeldLease
    deliveries: Sequence[Delivery]
    calls_outside: bool
    open: dict[int, Delivery] = field(init=False)
    cancelled: set[int] = field(default_factory=set)
    running: int | None = None
    slot: asyncio.Event = field(default_factory=asyncio.Event)
    lost: bool = False
    cut_off: bool = False
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.open = {delivery.position: delivery for delivery in self.deliveries}

    @property
    def stream(self) -> str:
        """Return the stream of its deliveries."""
        return self.deliveries[0].stream

    def adopt_task(self) -> None:
        """Make the current task that of the unit; raises CancelledError where the unit must not run any more.

        Asyncio never runs a task that is cancelled before its first step, so `task` is None until then.
        """
        self.task = asyncio.current_task()
        if self.lost or self.cut_off:
            raise asyncio.CancelledError

    def cut(self) -> None:
        """Cancel the unit, but only once: a second time would hit the giving back."""
        if not self.cut_off:
            self.cut_off = True
            self.cancel()

    def cancel(self) -> None:
        """Cancel the task of the unit; one that has not taken its first step finds out then."""
        if self.task:
            self.task.cancel()


def runs_of(deliveries: Sequence[Delivery]) -> Iterable[list[Delivery]]:
    """Split a claim by key: a run stays together, in order, whatever its handlers are."""
    runs: dict[object, list[Delivery]] = {}
    for delivery in deliveries:
        runs.setdefault(delivery.line or delivery.position, []).append(delivery)
    return runs.values()


def groups_of(runs: Iterable[list[Delivery]], size: int) -> Iterable[list[Delivery]]:
    """Join runs into groups of about a size."""
    group: list[Delivery] = []
    for run in runs:
        if group and len(group) + len(run) > size:
            yield group
            group = []
        group = [*group, *run]
    if group:
        yield group


class Execution:
    """Handles units of deliveries until each one is settled, released or lost."""

    def __init__(
        self,
        bus: Bus,
        dispatcher: Dispatcher,
        metrics: "WorkerMetrics",
        timeout: Callable[[float], asyncio.Timeout] = asyncio.timeout,
    ) -> None:
        self._bus = bus
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._timeout = timeout
        self._gates = Gates()

    async def run(self, unit: Unit) -> None:
        """Handle a unit; an unreachable store is waited for, as long as the lease is ours."""
        pause, together = _FIRST_PAUSE_SECONDS, True
        while unit.open and not unit.lost:
            try:
                if together and not unit.calls_outside:
                    await self._react_together(unit)
                else:
                    await self._one_by_one(unit)
            except (Conflict, _MustRunAlone):
                together = False
            except LeaseLost as lost:
                self._drop(unit, lost.positions)
                together = False
            except Unavailable as error:
                _log.warning("store unavailable, deliveries wait", deliveries=len(unit.open), error=str(error))
                await asyncio.sleep(pause)
                pause, together = min(pause * 2, _LONGEST_PAUSE_SECONDS), False
            except Exception:
                if unit.calls_outside or not together:
                    raise
                # One of the group wrote what cannot be stored: alone it fails by itself.
                together = False

    async def release(self, unit: Unit) -> None:
        """Give back what was not handled, with its attempt."""
        if unit.open and not unit.lost:
            try:
                await self._settle_all(unit, dict.fromkeys(unit.open.values(), Release()))
            except (LeaseLost, Transient) as error:
                _log.warning("deliveries not released, they come back when their lease ends", error=str(error))

    def is_effect(self, delivery: Delivery) -> bool:
        """Tell whether a delivery calls outside: such run concurrently, each on its own."""
        route = self._dispatcher.route(delivery)
        return isinstance(route, Route) and isinstance(route.handler, Effect)

    async def _react_together(self, unit: Unit) -> None:
        async with self._bus.transaction(hold=list(unit.open.values())) as transaction:
            outcomes: dict[Delivery, Outcome] = {}
            stopped: set[tuple[str, str]] = set()
            self._drop(unit, unit.open.keys() - {delivery.position for delivery in transaction.held})
            async with self._time_for_all(unit):
                await self._read_ahead(transaction)
                for delivery in transaction.held:
                    if delivery.line is None or delivery.line not in stopped:
                        outcome = await self._react_in_group(unit, delivery, transaction)
                        outcomes[delivery] = outcome
                        await transaction.settle(delivery, outcome)
                        if delivery.line and not isinstance(outcome, Done):
                            stopped.add(delivery.line)
        self._settled(unit, outcomes)
        unit.open.clear()

    async def _read_ahead(self, transaction: Transaction) -> None:
        routes = [(self._dispatcher.route(delivery), delivery.envelope) for delivery in transaction.held]
        keys = {
            (route.reads, envelope.aggregate_id): None
            for route, envelope in routes
            if isinstance(route, Route) and route.reads
        }
        if len(keys) > 1:
            await transaction.read_ahead(keys)

    async def _one_by_one(self, unit: Unit) -> None:
        for delivery in list(unit.open.values()):
            if delivery.position in unit.open and not unit.lost:
                outcome = await self._rerun_on_conflict(unit, delivery)
                self._settled(unit, {delivery: outcome})

    async def _rerun_on_conflict(self, unit: Unit, delivery: Delivery) -> Outcome:
        for _ in range(_CONFLICTS_MAX - 1):
            try:
                return await self._alone(unit, delivery)
            except Conflict:
                continue
        try:
            return await self._alone(unit, delivery)
        except Conflict as conflict:
            failure = self._failure(delivery, conflict)
            await self._settle_all(unit, {delivery: failure})
            return failure

    async def _alone(self, unit: Unit, delivery: Delivery) -> Outcome:
        route = self._dispatcher.route(delivery)
        early = self._verdict(unit, delivery, route)
        if early is None and isinstance(route, Route) and isinstance(route.handler, Effect):
            return await self._perform(unit, delivery, route, route.handler)
        try:
            async with self._bus.transaction(hold=[delivery]) as transaction:
                must_hold(transaction, delivery)
                async with self._time_for_one(unit, delivery, self._reaction_seconds(delivery.stream)):
                    outcome = early or await self._react(delivery, route, transaction)
                await transaction.settle(delivery, outcome)
        except (Conflict, Unavailable, LeaseLost):
            raise
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            outcome = self._failure(delivery, error)
            await self._settle_all(unit, {delivery: outcome})
        return outcome

    async def _react_in_group(self, unit: Unit, delivery: Delivery, transaction: Transaction) -> Outcome:
        """Run one reaction among others; what a failed one had collected is forgotten."""
        route = self._dispatcher.route(delivery)
        if early := self._verdict(unit, delivery, route):
            return early
        mark, keys = transaction.changes.mark(), transaction.dedup_keys_taken
        unit.running, started = delivery.position, time.monotonic()
        try:
            return await self._react(delivery, route, transaction)
        except (Conflict, Unavailable, LeaseLost):
            raise
        except Exception as error:
            if transaction.dedup_keys_taken != keys:
                raise _MustRunAlone from error
            transaction.changes.go_back(mark)
            return self._failure(delivery, error)
        finally:
            unit.running = None
            self._metrics.handled(delivery, time.monotonic() - started)

    async def _react(self, delivery: Delivery, route: "Route[Any] | Defer", transaction: Transaction) -> Outcome:
        cause = current_cause.set(delivery.envelope)
        try:
            with handler_span(delivery), unasked_cancellation_fails("the handler"):
                event = route.receive(delivery)  # type: ignore[union-attr]
                return await route.handler(event, transaction) or Done()  # type: ignore[union-attr,operator]
        finally:
            current_cause.reset(cause)

    async def _perform(self, unit: Unit, delivery: Delivery, route: Route[Any], effect: Effect[Any]) -> Outcome:
        seconds = self._bus.topology.stream(delivery.stream).deadline.total_seconds()
        cause = current_cause.set(delivery.envelope)
        try:
            async with self._time_for_one(unit, delivery, seconds):
                with handler_span(delivery):
                    return await perform(self._bus, effect, delivery, route.receive(delivery), self._gates)
        except (Conflict, Unavailable, LeaseLost):
            raise
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            failure = self._failure(delivery, error)
            await self._settle_all(unit, {delivery: failure})
            return failure
        finally:
            current_cause.reset(cause)

    def _verdict(self, unit: Unit, delivery: Delivery, route: "Route[Any] | Defer") -> Outcome | None:
        """Return the outcome of a delivery that must not run."""
        if delivery.position in unit.cancelled:
            return Dead("cancelled by an operator while it ran", "cancelled")
        if quarantined := delivery.quarantine():
            return quarantined
        if isinstance(route, Defer):
            self._metrics.no_handler(delivery)
            _log.warning("no handler", reason=route.reason, **delivery.envelope.log_fields())
            return route
        return None

    def _reaction_seconds(self, stream: str) -> float:
        """Return how long a reaction may take: less than the store lets its transaction idle."""
        deadline = self._bus.topology.stream(stream).deadline.total_seconds()
        return min(deadline, self._bus.idle_limit.total_seconds() * _IDLE_SHARE)

    @asynccontextmanager
    async def _time_for_all(self, unit: Unit) -> AsyncIterator[None]:
        """Give a group the time of one reaction; where that is not enough, each gets it alone."""
        seconds = self._reaction_seconds(unit.deliveries[0].stream)
        limit = self._timeout(seconds)
        unit.lease.deadlines[unit.deliveries[0].position] = time.monotonic() + seconds
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if limit.expired():
                raise _MustRunAlone from error
            raise
        finally:
            del unit.lease.deadlines[unit.deliveries[0].position]

    @asynccontextmanager
    async def _time_for_one(self, unit: Unit, delivery: Delivery, seconds: float) -> AsyncIterator[None]:
        """Cut a handler off at its deadline and note how long it took."""
        limit, started = self._timeout(seconds), time.monotonic()
        unit.running = delivery.position
        unit.lease.deadlines[delivery.position] = started + seconds
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if limit.expired():
                raise DeadlineExceeded(f"the handler took longer than {seconds:g} s") from error
            raise
        finally:
            unit.running = None
            del unit.lease.deadlines[delivery.position]
            self._metrics.handled(delivery, time.monotonic() - started)

    async def _settle_all(self, unit: Unit, outcomes: dict[Delivery, Settlement]) -> None:
        async with self._bus.transaction() as transaction:
            for delivery, outcome in outcomes.items():
                await transaction.settle(delivery, outcome)
        for delivery in outcomes:
            unit.open.pop(delivery.position, None)

    def _settled(self, unit: Unit, outcomes: dict[Delivery, Outcome]) -> None:
        for delivery, outcome in outcomes.items():
            self._metrics.settled(delivery, outcome)
            unit.open.pop(delivery.position, None)
            if not isinstance(outcome, Done):
                for position in delivery.run:
                    unit.open.pop(position, None)
                detail = outcome.reason if isinstance(outcome, Defer) else outcome.message
                verdict = type(outcome).__name__.lower()
                _log.info(
                    "not done",
                    outcome=verdict,
                    detail=detail,
                    attempt=delivery.attempt,
                    **delivery.envelope.log_fields(),
                )

    def _drop(self, unit: Unit, positions: AbstractSet[int]) -> None:
        for position in positions:
            if (delivery := unit.open.pop(position, None)) is not None:
                self._metrics.lost(delivery)

    def _failure(self, delivery: Delivery, error: Exception) -> Outcome:
        """Decide what an error of a handler means; only the kind of error matters."""
        message = f"{type(error).__name__}: {error}"
        match error:
            case Permanent():
                return Dead(message, error.code)
            case Transient():
                return Retry(error.after, error.code, message)
        _log.warning("handler failed", exc_info=error, **delivery.envelope.log_fields())
        return Retry(None, "error", message)
