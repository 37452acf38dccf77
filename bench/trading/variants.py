"""Broken variants of the pipeline, each without one of its rules. Each changes only the process that calls it."""

import os
import signal
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from examples.trading import exchange_client, executor, markets, notification, orders, reconcile, signals
from examples.trading.orders import OrderAttempt
from examples.trading.store import TradeStore, TradeTransaction
from kingdom import bus


def retry_unknown() -> None:
    """Treat a lost answer as a refusal: open the next attempt at once."""

    async def record(store: TradeStore, attempt: OrderAttempt, answer: bus.CallResult) -> None:
        lost = isinstance(answer, bus.Unknown)
        await record_answer(store, attempt, bus.Throttled(timedelta(0), "retry") if lost else answer)

    record_answer = orders.record_answer
    _replace(executor, "record_answer", record)


def resend_without_lookup() -> None:
    """Treat an order without an answer as absent, without a lookup."""

    async def look_up(_client: object, _identifier: str) -> bus.ReconcileResult:
        return bus.Absent()

    _replace(exchange_client.ExchangeClient, "look_up", look_up)


def resend_after_crash() -> None:
    """Handle the command of a dead sender again, as if nothing had been sent."""

    async def presume(store: TradeStore, intent_id: str, number: int) -> bool:
        async with store.transaction() as trade:
            sql = "UPDATE everbit.order_attempt SET state = 'PREPARED' WHERE order_intent_id = %(i)s AND state = 'SENT'"
            await trade.rows(sql, i=intent_id)
        return await presume_unknown(store, intent_id, number)

    presume_unknown = orders.presume_unknown
    _replace(executor, "presume_unknown", presume)


def new_identifier_after_lookup() -> None:
    """Open a new attempt for an order that a lookup did not find."""

    async def record(store: TradeStore, attempt: OrderAttempt, found: bus.ReconcileResult) -> None:
        if not isinstance(found, bus.Absent):
            await record_lookup(store, attempt, found)
            return
        async with store.transaction() as trade:
            if await orders._leave_unknown(trade, attempt, "THROTTLED", "absent"):
                await orders._open_next(trade, attempt, timedelta(0))

    record_lookup = orders.record_lookup
    _replace(reconcile, "record_lookup", record)


def new_identifier_after_resend() -> None:
    """Open a new attempt for a throttled one, even if an earlier sender may still send the old identifier."""

    async def record(store: TradeStore, attempt: OrderAttempt, answer: bus.CallResult) -> None:
        if not isinstance(answer, bus.Throttled):
            await record_answer(store, attempt, answer)
            return
        async with store.transaction() as trade:
            if await orders._leave_sent(trade, attempt, "THROTTLED", "throttled"):
                await orders._open_next(trade, attempt, timedelta(0))

    record_answer = orders.record_answer
    _replace(executor, "record_answer", record)


def throttled_ends() -> None:
    """Leave a throttled attempt as it is."""

    async def open_next(*_ignored: object) -> None:
        return

    _replace(orders, "_open_next", open_next)


def throttled_keeps_identifier() -> None:
    """Send a throttled attempt again instead of opening the next one."""

    async def record(store: TradeStore, attempt: OrderAttempt, answer: bus.CallResult) -> None:
        if not isinstance(answer, bus.Throttled):
            await record_answer(store, attempt, answer)
            return
        async with store.transaction() as trade:
            sql = "UPDATE everbit.order_attempt SET state = 'PREPARED', sends = 0 WHERE identifier = %(name)s"
            await trade.rows(sql, name=attempt.identifier)
            await trade.events.publish(orders.create_attempt(attempt.origin, attempt.intent_id, attempt.number))

    record_answer = orders.record_answer
    _replace(executor, "record_answer", record)


def ignore_state() -> None:
    """Send an attempt whatever its state is."""

    async def begin(store: TradeStore, intent_id: str, number: int) -> OrderAttempt | None:
        async with store.transaction() as trade:
            sql = "UPDATE everbit.order_attempt SET state = 'PREPARED' WHERE identifier = %(name)s"
            await trade.rows(sql, name=f"{intent_id}-{number}")
        return await begin_send(store, intent_id, number)

    begin_send = orders.begin_send
    _replace(executor, "begin_send", begin)


def publish_after_commit() -> None:
    """Commit an intent before its command is published, and die in between, once."""

    async def record(store: TradeStore, wanted: signals.Signal) -> object:
        died = Path(os.environ["TRADING_SCENE"]) / "died"
        if died.exists():
            return await record_signal(store, wanted)
        died.touch()
        _replace(bus.Transaction, "publish", _publish_nothing)
        await record_signal(store, wanted)
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    record_signal = signals.record_signal
    _replace(signals, "record_signal", record)


async def _publish_nothing(*_ignored: object, **_too: object) -> None:
    return


def never_suspend() -> None:
    """Let a market trade on while one of its orders stays UNKNOWN."""

    async def suspend(*_ignored: object) -> None:
        return

    _replace(reconcile, "suspend_if_overdue", suspend)


def ignore_stops() -> None:
    """Send into stopped markets."""

    async def is_stopped(_trade: TradeTransaction, _intent_id: str) -> bool:
        return False

    _replace(orders, "_is_stopped", is_stopped)


def forget_prepared() -> None:
    """Start a market again without publishing the commands of the orders that waited for it."""

    async def repeat(*_ignored: object) -> None:
        return

    _replace(markets, "_repeat_commands", repeat)


def push_without_lookup() -> None:
    """Send a push again without asking the push service whether it arrived."""

    async def reconcile_push(*_ignored: object) -> bus.ReconcileResult:
        return bus.Absent()

    _replace(notification.WebPush, "reconcile", reconcile_push)


def fill_in_silence() -> None:
    """Mark an intent as filled without an event."""

    async def fill(trade: TradeTransaction, attempt: OrderAttempt, _exchange_uuid: str) -> None:
        await orders._move_intent(trade, attempt, "ACCEPTED", "FILLED")
        sql = "UPDATE everbit.order_attempt SET next_lookup_at = NULL WHERE identifier = %(name)s"
        await trade.rows(sql, name=attempt.identifier)

    _replace(orders, "_fill", fill)


def log_push_before_sending() -> None:
    """Log a push as sent before it is sent."""

    async def log_sending(push: Any, event_id: str, event_type: str) -> bool:
        is_new = await original(push, event_id, event_type)
        await push._log_sent(event_id)
        return bool(is_new)

    original: Any = notification.WebPush._log_sending
    _replace(notification.WebPush, "_log_sending", log_sending)


def _replace(owner: Any, name: str, replacement: object) -> None:
    """Replace an attribute that must exist."""
    assert hasattr(owner, name), f"{owner} has no {name} any more"
    setattr(owner, name, replacement)


_ALL = (
    retry_unknown,
    resend_without_lookup,
    resend_after_crash,
    new_identifier_after_lookup,
    new_identifier_after_resend,
    throttled_ends,
    throttled_keeps_identifier,
    ignore_state,
    publish_after_commit,
    never_suspend,
    ignore_stops,
    forget_prepared,
    push_without_lookup,
    log_push_before_sending,
    fill_in_silence,
)
VARIANTS: Mapping[str, Callable[[], None]] = {variant.__name__: variant for variant in _ALL}
