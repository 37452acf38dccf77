"""Run handlers. Several reactions share one transaction; effects run one by one."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from kingdom.bus.cancellation import fail_on_stray_cancellation
from kingdom.bus.delivery import Delivery
from kingdom.bus.effects.effect import Effect
from kingdom.bus.effects.perform import perform, require_held
from kingdom.bus.effects.target_limiter import TargetLimiters
from kingdom.bus.envelope import current_cause
from kingdom.bus.outcome import AnyOutcome, Dead, Defer, Done, Outcome, Release, Retry
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.telemetry import handler_span
from kingdom.bus.worker.dispatcher import Dispatcher, HandlerRoute
from kingdom.bus.worker.keeper import HeldLease
from kingdom.errors import Conflict, DeadlineExceeded, LeaseLost, Permanent, Transient, Unavailable

if TYPE_CHECKING:
    from kingdom.bus.metrics import WorkerMetrics

# The pauses while the store is unavailable. Each is twice as long as the one before.
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0
# After this many runs of a handler that ended in a conflict, the attempt counts as failed.
_CONFLICTS_MAX = 5
# A reaction may take this share of the time after which the store aborts an idle transaction.
_IDLE_SHARE = 0.8
_log = structlog.get_logger("kingdom.bus")


class _MustRunAlone(Exception):
    """Raised when the reactions of a group must be rolled back and run one by one."""


class _HandlerFailed(Exception):
    """Raised when a handler fails. `error` is the error that the handler raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def _handler_failures() -> Iterator[None]:
    """Turn an error of a handler into _HandlerFailed. Errors that affect the whole unit are not changed."""
    try:
        yield
    except (Conflict, Unavailable, LeaseLost):
        raise
    except Exception as error:
        raise _HandlerFailed(error) from error


@dataclass(slots=True, eq=False)
class Unit:
    """Deliveries of one lease that are handled one after another.

    `open` has the deliveries that are neither settled nor lost, and `cancelled` the positions that an operator has
    cancelled. `running` is the position whose handler runs now. `calls_outside` is true for effects. The unit starts
    when `slot` is set. `lost` means that its lease was lost. `stopped` means that the worker has stopped it.
    """

    lease: HeldLease
    deliveries: Sequence[Delivery]
    calls_outside: bool
    open: dict[int, Delivery] = field(init=False)
    cancelled: set[int] = field(default_factory=set)
    running: int | None = None
    slot: asyncio.Event = field(default_factory=asyncio.Event)
    lost: bool = False
    stopped: bool = False
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.open = {delivery.position: delivery for delivery in self.deliveries}

    @property
    def stream(self) -> str:
        """Return the stream of the deliveries."""
        return self.deliveries[0].stream

    def adopt_task(self) -> None:
        """Make the current task the task of the unit. Raise CancelledError if the unit must not run any more.

        Until then `task` is None, so that `cancel` cannot cancel it: asyncio never runs a task that is cancelled before
        its first step, and its deliveries would not be released.
        """
        self.task = asyncio.current_task()
        if self.lost or self.stopped:
            raise asyncio.CancelledError

    def stop(self) -> None:
        """Cancel the unit, but only once: a second cancellation would interrupt the release of its deliveries."""
        if not self.stopped:
            self.stopped = True
            self.cancel()

    def uncancel(self) -> None:
        """Let the task of the unit continue after the cancellation of one event."""
        if self.task:
            self.task.uncancel()

    def cancel(self) -> None:
        """Cancel the task of the unit. A task that has not started checks `lost` and `stopped` in `adopt_task`."""
        if self.task:
            self.task.cancel()


def split_into_runs(deliveries: Sequence[Delivery]) -> Iterable[list[Delivery]]:
    """Split claimed deliveries into runs: the deliveries of one key in order, or one delivery without a key."""
    runs: dict[object, list[Delivery]] = {}
    for delivery in deliveries:
        runs.setdefault(delivery.ordering_key or delivery.position, []).append(delivery)
    return runs.values()


def join_into_groups(runs: Iterable[list[Delivery]], size: int) -> Iterable[list[Delivery]]:
    """Join runs into groups. A group has at most `size` deliveries, unless a single run is longer."""
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
        self._limiters = TargetLimiters()

    async def run(self, unit: Unit) -> None:
        """Handle a unit. If the store is unavailable, try again until the lease is lost."""
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
                self._drop_lost(unit, lost.positions)
                together = False
            except Unavailable as error:
                _log.warning("store unavailable, deliveries wait", deliveries=len(unit.open), error=str(error))
                await asyncio.sleep(pause)
                pause, together = min(pause * 2, _LONGEST_PAUSE_SECONDS), False
            except Exception:
                if unit.calls_outside or not together:
                    raise
                # One handler of the group wrote something that cannot be stored. If each handler runs alone, only that
                # handler fails.
                together = False

    async def release(self, unit: Unit) -> None:
        """Return the open deliveries of a unit to their stream, without counting the attempt."""
        if unit.open and not unit.lost:
            try:
                await self._settle_all(unit, dict.fromkeys(unit.open.values(), Release()))
            except (LeaseLost, Transient) as error:
                _log.warning("deliveries not released, they return when their lease ends", error=str(error))

    def is_effect(self, delivery: Delivery) -> bool:
        """Return whether the handler of a delivery is an effect."""
        route = self._dispatcher.route(delivery)
        return isinstance(route, HandlerRoute) and isinstance(route.handler, Effect)

    async def _react_together(self, unit: Unit) -> None:
        """Run all reactions of a unit in one transaction. After a failure, skip the later events of the same key."""
        async with self._bus.transaction(hold=list(unit.open.values())) as transaction:
            outcomes: dict[Delivery, Outcome] = {}
            stopped: set[tuple[str, str]] = set()
            self._drop_lost(unit, unit.open.keys() - {delivery.position for delivery in transaction.held})
            async with self._group_deadline(unit):
                await self._read_ahead(transaction)
                for delivery in transaction.held:
                    if delivery.ordering_key is None or delivery.ordering_key not in stopped:
                        outcome = await self._react_in_group(unit, delivery, transaction)
                        outcomes[delivery] = outcome
                        await transaction.settle(delivery, outcome)
                        if delivery.ordering_key and not isinstance(outcome, Done):
                            stopped.add(delivery.ordering_key)
        self._record_settled(unit, outcomes)
        unit.open.clear()

    async def _read_ahead(self, transaction: Transaction) -> None:
        routes = [(self._dispatcher.route(delivery), delivery.envelope) for delivery in transaction.held]
        keys = {
            (route.reads, envelope.aggregate_id): None
            for route, envelope in routes
            if isinstance(route, HandlerRoute) and route.reads
        }
        if len(keys) > 1:
            await transaction.read_ahead(keys)

    async def _one_by_one(self, unit: Unit) -> None:
        for delivery in list(unit.open.values()):
            if delivery.position in unit.open and not unit.lost:
                outcome = await self._rerun_on_conflict(unit, delivery)
                self._record_settled(unit, {delivery: outcome})

    async def _rerun_on_conflict(self, unit: Unit, delivery: Delivery) -> Outcome:
        for _ in range(_CONFLICTS_MAX - 1):
            try:
                return await self._run_alone(unit, delivery)
            except Conflict:
                continue
        try:
            return await self._run_alone(unit, delivery)
        except Conflict as conflict:
            failure = self._failure(delivery, conflict)
            await self._settle_all(unit, {delivery: failure})
            return failure

    async def _run_alone(self, unit: Unit, delivery: Delivery) -> Outcome:
        route = self._route(unit, delivery)
        if isinstance(route, HandlerRoute) and isinstance(route.handler, Effect):
            return await self._perform(unit, delivery, route, route.handler)
        try:
            with _handler_failures():
                async with self._bus.transaction(hold=[delivery]) as transaction:
                    require_held(transaction, delivery)
                    async with self._handler_deadline(unit, delivery, self._reaction_seconds(delivery.stream)):
                        outcome = await self._outcome_of(delivery, route, transaction)
                    await transaction.settle(delivery, outcome)
        except _HandlerFailed as failed:
            outcome = self._failure(delivery, failed.error)
            await self._settle_all(unit, {delivery: outcome})
        return outcome

    async def _react_in_group(self, unit: Unit, delivery: Delivery, transaction: Transaction) -> Outcome:
        """Run one reaction in the transaction of its group. If it fails, roll back only its own changes."""
        route = self._route(unit, delivery)
        if not isinstance(route, HandlerRoute):
            return route
        savepoint, keys = transaction.changes.savepoint(), transaction.dedup_keys_taken
        unit.running, started = delivery.position, time.monotonic()
        try:
            with _handler_failures():
                return await self._react(delivery, route, transaction)
        except _HandlerFailed as failed:
            if transaction.dedup_keys_taken != keys:
                # Only a rollback of the whole transaction frees the dedup key.
                raise _MustRunAlone from failed.error
            transaction.changes.roll_back_to(savepoint)
            return self._failure(delivery, failed.error)
        finally:
            unit.running = None
            self._metrics.record_handled(delivery, time.monotonic() - started)

    async def _outcome_of(
        self, delivery: Delivery, route: "HandlerRoute[Any] | Outcome", transaction: Transaction
    ) -> Outcome:
        return await self._react(delivery, route, transaction) if isinstance(route, HandlerRoute) else route

    async def _react(self, delivery: Delivery, route: HandlerRoute[Any], transaction: Transaction) -> Outcome:
        cause = current_cause.set(delivery.envelope)
        try:
            with handler_span(delivery), fail_on_stray_cancellation("the handler"):
                event = route.receive(delivery)
                return await route.handler(event, transaction) or Done()  # type: ignore[operator]  # no effect comes here
        finally:
            current_cause.reset(cause)

    async def _perform(self, unit: Unit, delivery: Delivery, route: HandlerRoute[Any], effect: Effect[Any]) -> Outcome:
        seconds = self._bus.topology.stream(delivery.stream).deadline.total_seconds()
        cause = current_cause.set(delivery.envelope)
        try:
            with _handler_failures():
                async with self._handler_deadline(unit, delivery, seconds):
                    with handler_span(delivery):
                        return await perform(self._bus, effect, delivery, route.receive(delivery), self._limiters)
        except _HandlerFailed as failed:
            failure = self._failure(delivery, failed.error)
            await self._settle_all(unit, {delivery: failure})
            return failure
        finally:
            current_cause.reset(cause)

    def _route(self, unit: Unit, delivery: Delivery) -> "HandlerRoute[Any] | Outcome":
        """Return the handler of a delivery, or its outcome if the delivery must not run."""
        route = self._dispatcher.route(delivery)
        if delivery.position in unit.cancelled:
            return Dead("cancelled by an operator while it ran", "cancelled")
        if quarantined := delivery.quarantine():
            return quarantined
        if isinstance(route, Defer):
            self._metrics.count_no_handler(delivery)
            _log.warning("no handler", reason=route.reason, **delivery.envelope.log_fields())
        return route

    def _reaction_seconds(self, stream: str) -> float:
        """Return how many seconds a reaction may take. It must end before the store aborts its transaction as idle."""
        deadline = self._bus.topology.stream(stream).deadline.total_seconds()
        return min(deadline, self._bus.idle_limit.total_seconds() * _IDLE_SHARE)

    @asynccontextmanager
    async def _group_deadline(self, unit: Unit) -> AsyncIterator[None]:
        """Limit a group to the time of one reaction. If the time is over, raise _MustRunAlone."""
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
    async def _handler_deadline(self, unit: Unit, delivery: Delivery, seconds: float) -> AsyncIterator[None]:
        """Cancel a handler at its deadline, and record how long it took."""
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
            self._metrics.record_handled(delivery, time.monotonic() - started)

    async def _settle_all(self, unit: Unit, outcomes: dict[Delivery, AnyOutcome]) -> None:
        async with self._bus.transaction() as transaction:
            for delivery, outcome in outcomes.items():
                await transaction.settle(delivery, outcome)
        for delivery in outcomes:
            unit.open.pop(delivery.position, None)

    def _record_settled(self, unit: Unit, outcomes: dict[Delivery, Outcome]) -> None:
        for delivery, outcome in outcomes.items():
            self._metrics.count_settled(delivery, outcome)
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

    def _drop_lost(self, unit: Unit, positions: AbstractSet[int]) -> None:
        for position in positions:
            if (delivery := unit.open.pop(position, None)) is not None:
                self._metrics.count_lost(delivery)

    def _failure(self, delivery: Delivery, error: Exception) -> Outcome:
        """Return the outcome of a delivery whose handler raised an error. It depends on the type of the error."""
        message = f"{type(error).__name__}: {error}"
        match error:
            case Permanent():
                return Dead(message, error.code)
            case Transient():
                return Retry(error.after, error.code, message)
        _log.warning("handler failed", exc_info=error, **delivery.envelope.log_fields())
        return Retry(None, "error", message)
