"""Running handlers: reactions together in one transaction, effects one by one through the ledger."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

from kingdom.bus.delivery import Delivery
from kingdom.bus.dispatcher import Dispatcher, Route
from kingdom.bus.effect import Effect
from kingdom.bus.envelope import current_cause
from kingdom.bus.gate import Gates
from kingdom.bus.keeper import HeldLease
from kingdom.bus.metrics import WorkerMetrics
from kingdom.bus.outcome import Dead, Defer, Done, Outcome, Release, Retry, Settlement
from kingdom.bus.perform import perform
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.telemetry import handler_span
from kingdom.errors import Conflict, DeadlineExceeded, KingdomError, LeaseLost, Permanent, Transient, Unavailable

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
    open: dict[int, Delivery] = field(init=False)
    cancelled: set[int] = field(default_factory=set)
    running: int | None = None
    started: bool = False
    lost: bool = False
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.open = {delivery.position: delivery for delivery in self.deliveries}


class Execution:
    """Handles units of deliveries until each one is settled, released or lost."""

    def __init__(self, bus: Bus, dispatcher: Dispatcher, metrics: WorkerMetrics) -> None:
        self._bus = bus
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._gates = Gates()

    async def run(self, unit: Unit) -> None:
        """Handle a unit; an unreachable store is waited for, as long as the lease is ours."""
        pause, together = _FIRST_PAUSE_SECONDS, True
        while unit.open and not unit.lost:
            try:
                if together and not any(map(self.is_effect, unit.open.values())):
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
            for delivery in transaction.held:
                if delivery.line is None or delivery.line not in stopped:
                    outcome = await self._react(unit, delivery, transaction, alone=False)
                    outcomes[delivery] = outcome
                    await transaction.settle(delivery, outcome)
                    if delivery.line and not isinstance(outcome, Done):
                        stopped.add(delivery.line)
        self._settled(unit, outcomes)
        unit.open.clear()

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
            failure = self._failure(conflict)
            await self._settle_all(unit, {delivery: failure})
            return failure

    async def _alone(self, unit: Unit, delivery: Delivery) -> Outcome:
        route = self._dispatcher.route(delivery)
        early = self._verdict(unit, delivery, route)
        if early is None and isinstance(route, Route) and isinstance(route.handler, Effect):
            return await self._perform(unit, delivery, route, route.handler)
        try:
            async with self._bus.transaction(hold=[delivery]) as transaction:
                if not transaction.held:
                    raise LeaseLost([delivery.position])
                outcome = await self._react(unit, delivery, transaction, alone=True)
                await transaction.settle(delivery, outcome)
        except _HandlerFailed as failed:
            outcome = failed.outcome
            await self._settle_all(unit, {delivery: outcome})
        return outcome

    async def _react(self, unit: Unit, delivery: Delivery, transaction: Transaction, *, alone: bool) -> Outcome:
        """Run one reaction; what a failed one had collected is thrown away, here or by the rollback."""
        route = self._dispatcher.route(delivery)
        if early := self._verdict(unit, delivery, route):
            return early
        before, keys = transaction.changes.snapshot(), transaction.dedup_keys_taken
        try:
            async with self._handling(unit, delivery, self._reaction_seconds(delivery)):
                event = route.receive(delivery)  # type: ignore[union-attr]
                outcome = await route.handler(event, transaction)  # type: ignore[union-attr,operator]
                return outcome or Done()
        except (Conflict, Unavailable, LeaseLost):
            raise
        except Exception as error:
            failure = self._failure(error)
            if alone:
                raise _HandlerFailed(failure) from error
            if transaction.dedup_keys_taken != keys:
                raise _MustRunAlone from error
            transaction.changes = before
            return failure

    async def _perform(self, unit: Unit, delivery: Delivery, route: Route[Any], effect: Effect[Any]) -> Outcome:
        try:
            async with self._handling(unit, delivery, self._deadline_seconds(delivery)):
                return await perform(self._bus, effect, delivery, route.receive(delivery), self._gates)
        except (Conflict, Unavailable, LeaseLost):
            raise
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            failure = self._failure(error)
            await self._settle_all(unit, {delivery: failure})
            return failure

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

    def _deadline_seconds(self, delivery: Delivery) -> float:
        return self._bus.topology.stream(delivery.stream).deadline.total_seconds()

    def _reaction_seconds(self, delivery: Delivery) -> float:
        """Return how long a reaction may take: less than the store lets its transaction idle."""
        return min(self._deadline_seconds(delivery), self._bus.idle_limit.total_seconds() * _IDLE_SHARE)

    @asynccontextmanager
    async def _handling(self, unit: Unit, delivery: Delivery, seconds: float) -> AsyncIterator[None]:
        """Everything around a handler: deadline, cause, span, duration."""
        deadline = asyncio.timeout(seconds)
        started = time.monotonic()
        unit.running = delivery.position
        unit.lease.deadlines[delivery.position] = started + seconds
        cause = current_cause.set(delivery.envelope)
        try:
            with handler_span(delivery):
                async with deadline:
                    yield
        except KingdomError:
            raise
        except Exception as error:
            if deadline.expired():
                raise DeadlineExceeded(f"the handler took longer than {seconds:g} s") from error
            _log.warning("handler failed", exc_info=True)
            raise
        finally:
            current_cause.reset(cause)
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

    def _failure(self, error: Exception) -> Outcome:
        """Decide what an error of a handler means; only the kind of error matters."""
        message = f"{type(error).__name__}: {error}"
        match error:
            case Permanent():
                return Dead(message, error.code)
            case Transient():
                return Retry(error.after, error.code, message)
        return Retry(None, "error", message)


class _HandlerFailed(Exception):
    """Carries the outcome of a failed handler out of the transaction that must roll back."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome
