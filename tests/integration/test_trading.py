"""The order pipeline on a real database: the rules of its tables, and the effect of each answer of the exchange."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest

from examples.trading import __main__ as trading
from examples.trading import orders
from examples.trading.backtest import extreme_flip
from examples.trading.markets import change_kill_switch, resume_resolved_markets, suspend_if_overdue
from examples.trading.settings import Settings
from examples.trading.signals import Signal, record_signal
from examples.trading.store import TradeStore, create_tables, open_store
from examples.trading.streams import TRADE_COMMAND
from kingdom.bus import Absent, Acked, Delivery, Done, Present, Rejected, Throttled, Unclear, Unknown

CANDLE = datetime(2026, 2, 17, tzinfo=UTC)
SIGNAL = Signal(strategy_key="EXTREME_FLIP", market="KRW-BTC", side="BUY", krw=Decimal(10000), candle_at=CANDLE)
NOW = timedelta(0)


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[TradeStore]:
    await create_tables(dsn)
    settings = replace(Settings.read(), database_url=dsn, lookup_after=NOW, unknown_limit=NOW)
    async with open_store(settings) as store:
        yield store


async def rows(store: TradeStore, sql: LiteralString) -> list[dict[str, Any]]:
    async with store.transaction() as trade:
        return await trade.rows(sql)


async def commands(store: TradeStore) -> list[Delivery]:
    """Take every due command of an executor."""
    return await store.bus.claim(TRADE_COMMAND, 100, "executor")


async def settle(store: TradeStore, deliveries: list[Delivery]) -> None:
    async with store.bus.transaction() as transaction:
        for delivery in deliveries:
            await transaction.settle(delivery, Done())


async def published(store: TradeStore) -> list[str]:
    found = await rows(store, "SELECT event_type FROM kingdom.outbox_all ORDER BY id")
    return [row["event_type"] for row in found]


async def attempts(store: TradeStore) -> list[tuple[int, str]]:
    found = await rows(store, "SELECT attempt_no, state FROM everbit.order_attempt ORDER BY id")
    return [(row["attempt_no"], row["state"]) for row in found]


async def intent_state(store: TradeStore) -> str:
    (row,) = await rows(store, "SELECT state FROM everbit.order_intent")
    return str(row["state"])


async def send(store: TradeStore) -> orders.OrderAttempt:
    """Record the signal and send its first attempt."""
    intent = await record_signal(store, SIGNAL)
    attempt = await orders.begin_send(store, str(intent), 1)
    assert attempt is not None
    return attempt


async def looked_up(store: TradeStore) -> orders.OrderAttempt:
    (attempt,) = await orders.claim_lookups(store, 10)
    return attempt


async def test_a_signal_its_intent_and_its_command_are_stored_together_and_once(store: TradeStore) -> None:
    intent = await record_signal(store, SIGNAL)
    assert await record_signal(store, SIGNAL) is None
    (command,) = await commands(store)
    envelope = command.envelope
    assert envelope.type == "CreateOrderAttempt"
    assert envelope.payload == {"orderIntentId": str(intent), "attemptNo": 1}
    assert envelope.attributes == {"market": "KRW-BTC", "strategyKey": "EXTREME_FLIP"}
    assert (envelope.owner_id, envelope.aggregate_type, envelope.aggregate_id) == ("OWNER", "OrderIntent", str(intent))
    (row,) = await rows(store, "SELECT * FROM everbit.order_intent")
    assert (row["id"], row["state"], row["trace_id"]) == (intent, "OPEN", envelope.trace_id)


async def test_a_signal_that_fails_leaves_neither_an_intent_nor_a_command(store: TradeStore) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        await record_signal(store, replace(SIGNAL, krw=Decimal(0)))
    assert await rows(store, "SELECT FROM everbit.signal") == []
    assert await commands(store) == []


async def test_a_command_that_is_handled_twice_at_once_sends_once(store: TradeStore) -> None:
    intent = str(await record_signal(store, SIGNAL))
    begun = await asyncio.gather(*(orders.begin_send(store, intent, 1) for _ in range(8)))
    assert len([attempt for attempt in begun if attempt]) == 1
    assert await attempts(store) == [(1, "SENT")]


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (Acked({"uuid": "u"}), "ACKED"),
        (Rejected("insufficient_funds"), "REJECTED"),
        (Throttled(NOW), "THROTTLED"),
        (Unknown("timeout"), "UNKNOWN"),
    ],
)
async def test_a_command_of_an_attempt_that_has_a_result_does_nothing(
    store: TradeStore, answer: Any, state: str
) -> None:
    attempt = await send(store)
    await orders.record_answer(store, attempt, answer)
    before = await published(store)
    assert await orders.begin_send(store, str(attempt.intent_id), 1) is None
    assert (await attempts(store))[0] == (1, state)
    assert await published(store) == before


async def test_the_database_refuses_a_second_attempt_with_a_number_or_an_identifier(store: TradeStore) -> None:
    attempt = await send(store)
    await orders.record_answer(store, attempt, Throttled(NOW))
    insert: LiteralString = """
        INSERT INTO everbit.order_attempt (order_intent_id, attempt_no, identifier, market, state)
        SELECT id, %(number)s, %(identifier)s, market, 'THROTTLED' FROM everbit.order_intent"""
    for number, identifier, constraint in (
        (1, "another", "attempt_number_once"),
        (7, attempt.identifier, "identifier_once"),
    ):
        with pytest.raises(psycopg.errors.UniqueViolation, match=constraint):
            async with store.transaction() as trade:
                await trade.rows(insert, number=number, identifier=identifier)


@pytest.mark.parametrize("answer", [None, Acked({"uuid": "u"}), Unknown("timeout")])
async def test_the_database_refuses_a_second_attempt_while_one_may_be_an_order(store: TradeStore, answer: Any) -> None:
    attempt = await send(store)
    if answer:
        await orders.record_answer(store, attempt, answer)
    with pytest.raises(psycopg.errors.UniqueViolation, match="one_live_attempt"):
        async with store.transaction() as trade:
            await trade.rows(
                """INSERT INTO everbit.order_attempt (order_intent_id, attempt_no, identifier, market)
                   SELECT id, 2, 'second', market FROM everbit.order_intent"""
            )


async def test_an_accepted_order_publishes_its_event_with_its_state(store: TradeStore) -> None:
    attempt = await send(store)
    await orders.record_answer(store, attempt, Acked({"uuid": "u-1"}))
    await orders.record_answer(store, attempt, Acked({"uuid": "u-1"}))
    assert await intent_state(store) == "ACCEPTED"
    assert await published(store) == ["CreateOrderAttempt", "OrderAccepted"]


async def test_a_rejected_order_ends_its_intent(store: TradeStore) -> None:
    await orders.record_answer(store, await send(store), Rejected("insufficient_funds"))
    assert await intent_state(store) == "REJECTED"
    assert await published(store) == ["CreateOrderAttempt", "OrderRejected"]
    assert await orders.claim_lookups(store, 10) == []


async def test_a_throttled_attempt_opens_the_next_one_with_a_new_identifier(store: TradeStore) -> None:
    attempt = await send(store)
    await settle(store, await commands(store))
    await orders.record_answer(store, attempt, Throttled(NOW))
    assert await attempts(store) == [(1, "THROTTLED"), (2, "PREPARED")]
    (command,) = await commands(store)
    second = await orders.begin_send(store, command.envelope.payload["orderIntentId"], 2)
    assert second is not None
    assert second.identifier != attempt.identifier


async def test_an_order_without_an_answer_is_not_sent_again_but_looked_up(store: TradeStore) -> None:
    attempt = await send(store)
    await settle(store, await commands(store))
    await orders.record_answer(store, attempt, Unknown("timeout"))
    assert await attempts(store) == [(1, "UNKNOWN")]
    assert await commands(store) == []
    assert (await looked_up(store)).identifier == attempt.identifier
    assert await orders.claim_lookups(store, 10) == [], "another reconciler looks it up"


async def test_an_absent_order_is_sent_again_with_the_same_identifier(store: TradeStore) -> None:
    attempt = await send(store)
    await settle(store, await commands(store))
    await orders.record_answer(store, attempt, Unknown("timeout"))
    await orders.record_lookup(store, await looked_up(store), Absent())
    (command,) = await commands(store)
    again = await orders.begin_send(store, str(attempt.intent_id), command.envelope.payload["attemptNo"])
    assert again is not None
    assert (again.identifier, again.sends) == (attempt.identifier, 2)


async def test_a_throttled_resend_keeps_its_identifier_because_a_stopped_sender_may_still_send_it(
    store: TradeStore,
) -> None:
    attempt = await send(store)
    await orders.record_answer(store, attempt, Unknown("timeout"))
    await orders.record_lookup(store, await looked_up(store), Absent())
    again = await orders.begin_send(store, str(attempt.intent_id), 1)
    assert again is not None
    await orders.record_answer(store, again, Throttled(NOW))
    assert await attempts(store) == [(1, "UNKNOWN")]


async def refused_resend(store: TradeStore) -> None:
    """Lose the answer of an order, find it absent, and send it again: this call is refused."""
    attempt = await send(store)
    await orders.record_answer(store, attempt, Unknown("timeout"))
    await orders.record_lookup(store, await looked_up(store), Absent())
    again = await orders.begin_send(store, str(attempt.intent_id), 1)
    assert again is not None
    await orders.record_answer(store, again, Rejected("insufficient_funds"))


async def test_a_refused_resend_is_looked_up_because_the_first_call_may_have_been_booked_late(
    store: TradeStore,
) -> None:
    await refused_resend(store)
    assert (await attempts(store), await intent_state(store)) == ([(1, "UNKNOWN")], "OPEN")
    await orders.record_lookup(store, await looked_up(store), Present({"state": "done", "uuid": "u"}))
    assert await intent_state(store) == "FILLED"


async def test_a_refused_resend_that_a_lookup_does_not_find_ends_its_intent(store: TradeStore) -> None:
    await refused_resend(store)
    await orders.record_lookup(store, await looked_up(store), Absent())
    assert (await attempts(store), await intent_state(store)) == ([(1, "REJECTED")], "REJECTED")
    assert (await published(store))[-1] == "OrderRejected"
    assert await orders.claim_lookups(store, 10) == []


async def test_an_order_whose_sender_and_command_are_dead_is_looked_up(store: TradeStore) -> None:
    hasty = TradeStore(replace(store.settings, sent_limit=NOW), store.bus, store._pool)
    attempt = await send(hasty)
    found = await looked_up(store)
    assert (found.identifier, found.state) == (attempt.identifier, "UNKNOWN")
    assert await attempts(store) == [(1, "UNKNOWN")]
    await orders.record_lookup(store, found, Present({"state": "done", "uuid": "u"}))
    assert await intent_state(store) == "FILLED"


async def test_an_open_order_is_checked_less_and_less_often(store: TradeStore) -> None:
    slow = TradeStore(replace(store.settings, lookup_after=timedelta(seconds=2)), store.bus, store._pool)
    await orders.record_answer(store, await send(store), Acked({"uuid": "u"}))
    waits = []
    for _ in range(6):
        await orders.record_lookup(slow, await looked_up(store), Present({"state": "wait", "uuid": "u"}))
        (row,) = await rows(
            store, "SELECT round(extract(epoch FROM next_lookup_at - now())) AS wait FROM everbit.order_attempt"
        )
        waits.append(int(row["wait"]))
        await rows(store, "UPDATE everbit.order_attempt SET next_lookup_at = now()")
    # The last wait is 30 seconds. A slow machine may have used a part of it already.
    assert (waits[0] <= 2, waits[-1] > 10) == (True, True), waits


async def test_a_late_answer_changes_nothing_unless_the_exchange_has_the_order(
    store: TradeStore,
) -> None:
    asleep = await send(store)
    assert await orders.presume_unknown(store, str(asleep.intent_id), 1) is False
    await orders.record_lookup(store, await looked_up(store), Absent())
    again = await orders.begin_send(store, str(asleep.intent_id), 1)
    assert again is not None
    for answer in (Rejected("late"), Throttled(NOW), Unknown("HTTP 409")):
        await orders.record_answer(store, asleep, answer)
        assert await attempts(store) == [(1, "SENT")]
    await orders.record_answer(store, asleep, Acked({"uuid": "u"}))
    await orders.record_answer(store, again, Unknown("HTTP 409"))
    assert await attempts(store) == [(1, "ACKED")]


async def test_an_attempt_that_was_never_sent_does_not_become_unknown(store: TradeStore) -> None:
    intent = str(await record_signal(store, SIGNAL))
    assert await orders.presume_unknown(store, intent, 1) is True
    assert await attempts(store) == []


async def test_a_lookup_finds_acceptance_and_filling(store: TradeStore) -> None:
    await orders.record_answer(store, await send(store), Unknown("timeout"))
    await orders.record_lookup(store, await looked_up(store), Present({"state": "wait", "uuid": "u"}))
    assert await intent_state(store) == "ACCEPTED"
    await orders.record_lookup(store, await looked_up(store), Present({"state": "done", "uuid": "u"}))
    assert await intent_state(store) == "FILLED"
    assert await published(store) == ["CreateOrderAttempt", "OrderAccepted", "OrderFilled"]
    assert await orders.claim_lookups(store, 10) == []


async def test_a_lookup_finds_a_rejection(store: TradeStore) -> None:
    await orders.record_answer(store, await send(store), Unknown("timeout"))
    await orders.record_lookup(store, await looked_up(store), Present({"state": "rejected", "reason": "funds"}))
    assert await intent_state(store) == "REJECTED"


async def test_a_market_is_suspended_while_an_order_is_unclear_and_resumes_with_its_backlog(
    store: TradeStore,
) -> None:
    attempt = await send(store)
    await orders.record_answer(store, attempt, Unknown("timeout"))
    unclear = await looked_up(store)
    await orders.record_lookup(store, unclear, Unclear("HTTP 503"))
    await suspend_if_overdue(store, unclear, "HTTP 503")
    await suspend_if_overdue(store, unclear, "HTTP 503")
    second = str(await record_signal(store, replace(SIGNAL, candle_at=CANDLE + timedelta(minutes=1))))
    assert await orders.begin_send(store, second, 1) is None
    await settle(store, await commands(store))
    await resume_resolved_markets(store)
    assert await orders.begin_send(store, second, 1) is None
    await orders.record_lookup(store, unclear, Present({"state": "done", "uuid": "u"}))
    await resume_resolved_markets(store)
    (command,) = await commands(store)
    assert command.envelope.payload["orderIntentId"] == second
    assert await orders.begin_send(store, second, 1) is not None
    found = await published(store)
    assert (found.count("MarketSuspended"), found.count("MarketResumed")) == (1, 1)


@pytest.mark.parametrize("market", ["KRW-BTC", "*"])
async def test_a_kill_switch_holds_orders_back_until_it_is_off(store: TradeStore, market: str) -> None:
    await change_kill_switch(store, market, CANDLE, is_on=True)
    intent = str(await record_signal(store, SIGNAL))
    assert await orders.begin_send(store, intent, 1) is None
    await settle(store, await commands(store))
    other = str(await record_signal(store, replace(SIGNAL, market="KRW-ETH")))
    assert (await orders.begin_send(store, other, 1) is None) == (market == "*")
    await settle(store, await commands(store))
    await change_kill_switch(store, market, CANDLE - timedelta(seconds=1), is_on=False)
    assert await orders.begin_send(store, intent, 1) is None, "an older request does not win"
    await change_kill_switch(store, market, CANDLE + timedelta(seconds=1), is_on=False)
    repeated = {UUID(command.envelope.payload["orderIntentId"]) for command in await commands(store)}
    assert repeated == {UUID(name) for name in ((intent, other) if market == "*" else (intent,))}
    assert await orders.begin_send(store, intent, 1) is not None


async def test_a_switch_that_a_person_sets_counts_even_if_an_earlier_request_has_a_later_time(
    store: TradeStore,
) -> None:
    await change_kill_switch(store, "*", datetime.now(UTC) + timedelta(hours=1), is_on=False)
    await change_kill_switch(store, "*", None, is_on=True)
    assert await orders.begin_send(store, str(await record_signal(store, SIGNAL)), 1) is None


def test_a_worker_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        trading.main(["work", "order-exekutor"])
    assert "there is no worker 'order-exekutor'" in capsys.readouterr().err


def test_the_strategy_trades_against_an_extreme_move() -> None:
    assert [extreme_flip(prices) for prices in ([100], [100, 96], [100, 104], [100, 101])] == [
        None,
        "BUY",
        "SELL",
        None,
    ]
