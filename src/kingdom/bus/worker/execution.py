"""Run handlers: reactions, which only change the store, and effects, which call another system.

Several reactions share one transaction. Effects run one by one.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import structlog

from kingdom.bus.cancellation import fail_if_stray
from kingdom.bus.delivery import Delivery
from kingdom.bus.effects.effect import Effect
from kingdom.bus.effects.perform import log_open_call, perform, require_held
from kingdom.bus.effects.target_limiter import TargetLimiters
from kingdom.bus.envelope import current_cause
from kingdom.bus.outcome import AnyOutcome, Dead, Defer, Done, MoveToStore, Outcome, Release, Retry
from kingdom.bus.port import Bus, Transaction, resolve_outcome
from kingdom.bus.telemetry import handler_spans
from kingdom.bus.worker.dispatcher import Dispatcher, HandlerRoute
from kingdom.bus.worker.unit import Unit
from kingdom.errors import Conflict, DeadlineExceeded, LeaseLost, Permanent, Transient, Unavailable

if TYPE_CHECKING:
    from kingdom.bus.metrics import WorkerMetrics

# The pauses while the store is unavailable. Each is twice as long as the one before.
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0
# If this many runs of a handler end in a conflict, the attempt counts as failed.
_CONFLICTS_MAX = 5
# A reaction may take this share of the time after which the store aborts an idle transaction.
_IDLE_SHARE = 0.8
# A group commits after about this time even if more reactions wait, because other transactions may wait for its locks.
GROUP_SECONDS = 0.05
# Errors that concern the whole unit, not one handler.
_UNIT_FAILURES = (Conflict, Unavailable, LeaseLost)
_DONE = Done()
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
    except _UNIT_FAILURES:
        raise
    except Exception as error:
        raise _HandlerFailed(error) from error


class Execution:
    """Handles units until each of their deliveries is settled, released or lost."""

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
        self._open_span = handler_spans()

    async def run(self, unit: Unit) -> None:
        """Handle a unit: reactions in groups that share a transaction, effects one by one.

        A group that fails runs again as two halves. After a group that succeeds, the next group is twice as large. If
        the changes of one event cannot be stored, the other events of its group thus still share a few transactions.
        If the store is unavailable, try again until the lease is lost.
        """
        self._open_span = handler_spans()
        pause, size, stay_alone = _FIRST_PAUSE_SECONDS, len(unit.open), unit.calls_outside
        alone = stay_alone
        while unit.open and not unit.lost:
            group = list(islice(unit.open.values(), 1 if alone else size))
            try:
                if alone:
                    await self._run_one(unit, group[0])
                else:
                    await self._react_together(unit, group)
                size, alone = 2 * len(group), stay_alone
                continue
            except _MustRunAlone:
                stay_alone = True
            except Conflict:
                pass
            except LeaseLost as lost:
                if not self._drop_lost(unit, lost.positions) and len(group) == 1:
                    # Another run would end in the same way. When the lease has ended, they are delivered again.
                    self._drop_lost(unit, {group[0].position, *group[0].same_key})
            except Unavailable as error:
                _log.warning("store unavailable, deliveries wait", deliveries=len(unit.open), error=str(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
            except Exception:
                if alone:
                    raise
            # One handler of the group may have written something that cannot be stored.
            size, alone = max(len(group) // 2, 1), stay_alone or len(group) == 1

    async def release(self, unit: Unit) -> None:
        """Return the open deliveries of a unit to their stream, without counting the attempt."""
        if unit.open and not unit.lost:
            try:
                async with self._bus.transaction() as transaction:
                    await transaction.settle_all(dict.fromkeys(unit.open.values(), Release()))
                unit.open.clear()
            except (LeaseLost, Transient) as error:
                _log.warning("deliveries not released, they return when their lease ends", error=str(error))

    def effect_types(self, deliveries: Sequence[Delivery]) -> set[str]:
        """Return the event types whose handler is an effect. Deliveries that are still in a transport do not count."""
        return {
            delivery.envelope.type
            for delivery, route in zip(deliveries, self._routes(deliveries), strict=True)
            # An effect does not run from a transport, so it needs no unit of its own there.
            if isinstance(route, HandlerRoute) and isinstance(route.handler, Effect) and not delivery.in_transport
        }

    async def _react_together(self, unit: Unit, group: Sequence[Delivery]) -> None:
        """Run reactions in one transaction. If an outcome is not Done, skip the later events of the same key."""
        routes = self._routes(group)
        # Two workers must never run events of the same key, so the store checks the lease of ordered events before they
        # run: when the transaction opens, or in an optimistic transaction with its first read.
        optimistic = not any(delivery.ordered for delivery in group) or bool(_reads(group, routes))
        async with self._bus.transaction(hold=group, optimistic=optimistic) as transaction:
            if len(transaction.held) != len(group):
                self._drop_lost(unit, {each.position for each in group} - {each.position for each in transaction.held})
                routes = self._routes(transaction.held)
            async with self._group_deadline(unit):
                if keys := _reads(transaction.held, routes):
                    await transaction.read_ahead(keys)
                outcomes = await self._react_in_turn(unit, routes, transaction)
            await transaction.settle_all(outcomes)
        self._record_settled(unit, outcomes)

    async def _react_in_turn(
        self, unit: Unit, routes: Sequence["HandlerRoute[Any] | Defer"], transaction: Transaction
    ) -> dict[Delivery, AnyOutcome]:
        """Run the reactions of a group for a limited time, and return their outcomes. Later groups run the others."""
        outcomes: dict[Delivery, AnyOutcome] = {}
        stopped: set[tuple[str, str]] = set()
        seconds: dict[str, list[float]] = defaultdict(list)
        now = time.monotonic()
        until = now + GROUP_SECONDS
        for delivery, found in zip(transaction.held, routes, strict=True):
            key = delivery.ordering_key
            if outcomes and now > until:
                break
            if key is not None and key in stopped:
                continue
            route = self._allowed_route(unit, delivery, found)
            if isinstance(route, HandlerRoute):
                outcomes[delivery] = await self._react_in_group(unit, delivery, route, transaction)
                started, now = now, time.monotonic()
                seconds[delivery.envelope.type].append(now - started)
            else:
                outcomes[delivery] = route
            if key and not isinstance(outcomes[delivery], Done):
                stopped.add(key)
        for event_type, durations in seconds.items():
            self._metrics.record_handled(unit.stream, event_type, durations)
        return outcomes

    def _routes(self, deliveries: Sequence[Delivery]) -> list["HandlerRoute[Any] | Defer"]:
        """Return the route of each delivery. Deliveries of one type and version share one."""
        found: dict[tuple[str, int], HandlerRoute[Any] | Defer] = {}
        routes = []
        for delivery in deliveries:
            kind = (delivery.envelope.type, delivery.envelope.schema_version)
            route = found.get(kind)
            if route is None:
                route = found[kind] = self._dispatcher.route(delivery)
            routes.append(route)
        return routes

    async def _run_one(self, unit: Unit, delivery: Delivery) -> None:
        outcome = await self._rerun_on_conflict(unit, delivery)
        self._record_settled(unit, {delivery: outcome})

    async def _rerun_on_conflict(self, unit: Unit, delivery: Delivery) -> Outcome | MoveToStore:
        for _ in range(_CONFLICTS_MAX - 1):
            try:
                return await self._run_alone(unit, delivery)
            except Conflict:
                continue
        try:
            return await self._run_alone(unit, delivery)
        except Conflict as conflict:
            return await self._settle_alone(unit, delivery, self._failure(delivery, conflict))

    async def _run_alone(self, unit: Unit, delivery: Delivery) -> Outcome | MoveToStore:
        route = self._allowed_route(unit, delivery, self._dispatcher.route(delivery))
        if isinstance(route, HandlerRoute) and isinstance(route.handler, Effect):
            return await self._perform(unit, delivery, route, route.handler)
        outcome: Outcome | MoveToStore
        try:
            with _handler_failures():
                async with self._bus.transaction(hold=[delivery]) as transaction:
                    require_held(transaction, delivery)
                    if isinstance(route, HandlerRoute):
                        async with self._handler_deadline(unit, delivery, self._reaction_seconds(delivery.stream)):
                            outcome = await self._react(delivery, route, transaction)
                    else:
                        outcome = route
                    await transaction.settle(delivery, outcome)
        except _HandlerFailed as failed:
            return await self._settle_alone(unit, delivery, self._failure(delivery, failed.error))
        return outcome

    async def _react_in_group(
        self, unit: Unit, delivery: Delivery, route: HandlerRoute[Any], transaction: Transaction
    ) -> Outcome:
        """Run one reaction in the transaction of its group. If it fails, roll back only its own changes."""
        savepoint, keys = transaction.changes.savepoint(), transaction.dedup_keys_taken
        unit.running = delivery.position
        try:
            return await self._react(delivery, route, transaction)
        except _UNIT_FAILURES:
            raise
        except Exception as error:
            if transaction.dedup_keys_taken != keys:
                # Only a rollback of the whole transaction frees the dedup key.
                raise _MustRunAlone from error
            transaction.changes.roll_back_to(savepoint)
            return self._failure(delivery, error)
        finally:
            unit.running = None

    async def _react(self, delivery: Delivery, route: HandlerRoute[Any], transaction: Transaction) -> Outcome:
        cause = current_cause.set(delivery.envelope)
        try:
            with self._open_span(delivery):
                event = route.receive(delivery)
                try:
                    return await route.handler(event, transaction) or _DONE  # type: ignore[operator]  # no effect here
                except asyncio.CancelledError as error:
                    fail_if_stray(error, "the handler")
                    raise
        finally:
            current_cause.reset(cause)

    async def _perform(self, unit: Unit, delivery: Delivery, route: HandlerRoute[Any], effect: Effect[Any]) -> Outcome:
        seconds = self._bus.topology.stream(delivery.stream).deadline.total_seconds()
        cause = current_cause.set(delivery.envelope)
        try:
            with _handler_failures():
                async with self._handler_deadline(unit, delivery, seconds):
                    with self._open_span(delivery):
                        return await perform(self._bus, effect, delivery, route.receive(delivery), self._limiters)
        except _HandlerFailed as failed:
            return await self._settle_alone(unit, delivery, self._failure(delivery, failed.error))
        finally:
            current_cause.reset(cause)

    def _allowed_route(
        self, unit: Unit, delivery: Delivery, route: "HandlerRoute[Any] | Defer"
    ) -> "HandlerRoute[Any] | Outcome | MoveToStore":
        """Return the handler of a delivery, or its outcome if the delivery must not run."""
        if delivery.in_transport and isinstance(route, HandlerRoute) and isinstance(route.handler, Effect):
            return MoveToStore()
        if delivery.position in unit.cancelled:
            return Dead("cancelled by an operator while it ran", "cancelled")
        if outcome := delivery.outcome_without_running():
            return outcome
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
            took = time.monotonic() - started
            self._metrics.record_handled(delivery.stream, delivery.envelope.type, [took])

    async def _settle_alone(self, unit: Unit, delivery: Delivery, outcome: Outcome) -> Outcome:
        """Settle an event in a transaction of its own. If it dies with an open call, log that."""
        async with self._bus.transaction() as transaction:
            await transaction.settle(delivery, outcome)
            route, stored = self._dispatcher.route(delivery), transaction.changes.settlements[delivery.position].outcome
            if isinstance(stored, Dead) and isinstance(route, HandlerRoute) and isinstance(route.handler, Effect):
                await log_open_call(transaction, route.handler, delivery, route.receive)
        unit.open.pop(delivery.position, None)
        return outcome

    def _record_settled(self, unit: Unit, outcomes: Mapping[Delivery, AnyOutcome]) -> None:
        others = {delivery: outcome for delivery, outcome in outcomes.items() if not isinstance(outcome, Done)}
        if done := len(outcomes) - len(others):
            self._metrics.count_settled(unit.stream, Done, done)
        for delivery in outcomes:
            unit.open.pop(delivery.position, None)
        for delivery, outcome in others.items():
            for position in delivery.same_key:
                unit.open.pop(position, None)
            # A Retry at the last attempt is stored as Dead.
            stored = resolve_outcome(self._bus.topology.stream(unit.stream), delivery, outcome)
            self._metrics.count_settled(unit.stream, type(stored), 1)
            if not isinstance(stored, Done | Release | MoveToStore):
                detail = stored.reason if isinstance(stored, Defer) else stored.message
                _log.info(
                    "not done",
                    outcome=type(stored).__name__.lower(),
                    detail=detail,
                    attempt=delivery.attempt,
                    **delivery.envelope.log_fields(),
                )

    def _drop_lost(self, unit: Unit, positions: AbstractSet[int]) -> bool:
        """Forget lost deliveries, and return whether one of them was still open."""
        dropped = [unit.open.pop(position) for position in positions & unit.open.keys()]
        for delivery in dropped:
            self._metrics.count_lost(delivery)
        return bool(dropped)

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


def _reads(
    deliveries: Sequence[Delivery], routes: Sequence["HandlerRoute[Any] | Defer"]
) -> dict[tuple[str, str], None]:
    """Return the kinds and ids of the records that the handlers of these deliveries read."""
    return {
        (route.reads, delivery.envelope.aggregate_id): None
        for delivery, route in zip(deliveries, routes, strict=True)
        if isinstance(route, HandlerRoute) and route.reads
    }
