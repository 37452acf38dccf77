"""From an intent to an order: the attempts and their state machine.

    PREPARED ──▶ SENT ──▶ ACKED       the exchange has the order
       ▲          ├─────▶ REJECTED    the exchange refused it for good
       │          ├─────▶ THROTTLED   the exchange did not look at it: the next attempt is opened
       │          └─────▶ UNKNOWN     no answer: only a lookup decides
       │                     │  └───▶ ACKED, REJECTED
       └─────────────────────┘        proven absent: the same identifier may be sent again

Every function is one transaction. SENT is committed before the call, and nothing is locked during the call.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

from psycopg.rows import DictRow

from examples.trading.store import TradeStore, TradeTransaction
from examples.trading.streams import Origin
from kingdom import bus

INTENT = "OrderIntent"
# How long a throttled order waits if the exchange does not say.
_THROTTLED_WAIT = timedelta(seconds=1)
# While an attempt is looked up, no other process looks it up for this long.
_LOOKUP_LEASE = timedelta(seconds=10)
_LONGEST_LOOKUP_WAIT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderAttempt:
    """One attempt to place the order of an intent. `sends` counts the calls with this identifier.

    `refusal` is why the exchange refused a repeated call, until a lookup shows whether an earlier call was booked.
    """

    intent_id: UUID
    number: int
    identifier: str
    market: str
    side: str
    krw: Decimal
    state: str
    sends: int
    lookups: int
    refusal: str
    origin: Origin

    @classmethod
    def read(cls, row: DictRow) -> "OrderAttempt":
        """Read an attempt, joined with its intent."""
        origin = Origin(
            owner_id=row["owner_id"],
            market=row["market"],
            strategy_key=row["strategy_key"],
            trace_id=row["trace_id"],
        )
        names = ("identifier", "market", "side", "krw", "state", "sends", "lookups", "refusal")
        values = {name: row[name] for name in names}
        return cls(intent_id=row["order_intent_id"], number=row["attempt_no"], origin=origin, **values)

    def event(self, event_type: str, **payload: str) -> bus.Envelope:
        """Return an event about the intent of this attempt."""
        about = {"orderIntentId": str(self.intent_id), "attemptNo": self.number, "identifier": self.identifier}
        return self.origin.envelope(event_type, INTENT, str(self.intent_id), {**about, **payload})


def create_attempt(origin: Origin, intent_id: UUID, number: int) -> bus.Envelope:
    """Return the command to create an attempt and to send it. Handling it twice sends it once."""
    payload = {"orderIntentId": str(intent_id), "attemptNo": number}
    return origin.envelope("CreateOrderAttempt", INTENT, str(intent_id), payload)


async def begin_send(store: TradeStore, intent_id: str, number: int) -> OrderAttempt | None:
    """Mark an attempt as SENT and return it. Return None if it was sent already, or must not be sent now.

    An attempt in a stopped market stays PREPARED, and its command is published again when the market starts. If no
    answer is recorded for too long, the command may be dead: the reconcile worker looks the order up.
    """
    async with store.transaction() as trade:
        await _insert_attempt(trade, intent_id, number)
        if await _is_stopped(trade, intent_id):
            return None
        row = await trade.row(
            """UPDATE everbit.order_attempt AS attempt
               SET state = 'SENT', sends = sends + 1, sent_at = clock_timestamp(), unknown_since = NULL, refusal = '',
                   next_lookup_at = clock_timestamp() + %(overdue)s
               FROM everbit.order_intent AS intent
               WHERE intent.id = order_intent_id AND order_intent_id = %(intent)s AND attempt_no = %(number)s
                 AND attempt.state = 'PREPARED'
               RETURNING attempt.*, intent.side, intent.krw, owner_id, strategy_key, trace_id""",
            intent=intent_id,
            number=number,
            overdue=store.settings.sent_limit,
        )
        return OrderAttempt.read(row) if row else None


async def presume_unknown(store: TradeStore, intent_id: str, number: int) -> bool:
    """After the death of a sender, turn SENT into UNKNOWN. Return True if the attempt was not sent."""
    async with store.transaction() as trade:
        await trade.rows(
            """UPDATE everbit.order_attempt
               SET state = 'UNKNOWN', unknown_since = clock_timestamp(), note = 'the sender died',
                   next_lookup_at = clock_timestamp() + %(wait)s
               WHERE order_intent_id = %(intent)s AND attempt_no = %(number)s AND state = 'SENT'""",
            intent=intent_id,
            number=number,
            wait=store.settings.lookup_after,
        )
        row = await trade.row(
            "SELECT state FROM everbit.order_attempt WHERE order_intent_id = %(intent)s AND attempt_no = %(number)s",
            intent=intent_id,
            number=number,
        )
    return row is None or row["state"] == "PREPARED"


async def record_answer(store: TradeStore, attempt: OrderAttempt, answer: bus.CallResult) -> None:
    """Record the answer of the exchange to a call, with the event or command that follows from it."""
    async with store.transaction() as trade:
        match answer:
            case bus.Acked(order):
                await _accept(trade, attempt, str(order["uuid"]), "", store.settings.lookup_after)
            case bus.Rejected(reason) if attempt.sends == 1:
                if await _leave_sent(trade, attempt, "REJECTED", reason):
                    await _reject(trade, attempt, reason)
            case bus.Rejected(reason):
                # Perhaps it was refused because an earlier call was booked after all, and has used the money.
                await _leave_sent(trade, attempt, "UNKNOWN", reason, store.settings.lookup_after, refusal=reason)
            case bus.Throttled(after, reason) if attempt.sends == 1:
                if await _leave_sent(trade, attempt, "THROTTLED", reason):
                    await _open_next(trade, attempt, _THROTTLED_WAIT if after is None else after)
            case bus.Throttled(after, reason):
                # An earlier sender that is stopped may still send this identifier, so no other one may be used.
                await _leave_sent(trade, attempt, "UNKNOWN", reason, _THROTTLED_WAIT if after is None else after)
            case bus.Unknown(reason):
                await _leave_sent(trade, attempt, "UNKNOWN", reason, store.settings.lookup_after)
            case bus.Accepted():
                raise AssertionError("the exchange answers at once")


async def claim_lookups(store: TradeStore, limit: int) -> list[OrderAttempt]:
    """Take attempts that are due for a lookup: those without an answer, and accepted orders that are not filled.

    An attempt that is still SENT has lost its sender, and becomes UNKNOWN.
    """
    async with store.transaction() as trade:
        rows = await trade.rows(
            """WITH due AS (
                 SELECT id FROM everbit.order_attempt WHERE next_lookup_at <= now()
                 ORDER BY next_lookup_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
               )
               UPDATE everbit.order_attempt AS attempt
               SET next_lookup_at = now() + %(lease)s,
                   unknown_since = CASE attempt.state WHEN 'SENT' THEN clock_timestamp() ELSE unknown_since END,
                   note = CASE attempt.state WHEN 'SENT' THEN 'the sender died' ELSE note END,
                   state = CASE attempt.state WHEN 'SENT' THEN 'UNKNOWN' ELSE attempt.state END
               FROM due, everbit.order_intent AS intent
               WHERE attempt.id = due.id AND intent.id = order_intent_id
               RETURNING attempt.*, intent.side, intent.krw, owner_id, strategy_key, trace_id""",
            limit=limit,
            lease=_LOOKUP_LEASE,
        )
    return [OrderAttempt.read(row) for row in rows]


async def record_lookup(store: TradeStore, attempt: OrderAttempt, found: bus.ReconcileResult) -> None:
    """Record what the exchange shows for an attempt."""
    wait = min(store.settings.lookup_after * 2 ** min(attempt.lookups, 10), _LONGEST_LOOKUP_WAIT)
    async with store.transaction() as trade:
        match found:
            case bus.Present(order) if order["state"] == "rejected":
                if await _leave_unknown(trade, attempt, "REJECTED", str(order["reason"])):
                    await _reject(trade, attempt, str(order["reason"]))
            case bus.Present(order):
                await _accept(trade, attempt, str(order["uuid"]), "found by a lookup", store.settings.lookup_after)
                if order["state"] == "done":
                    await _fill(trade, attempt, str(order["uuid"]))
                else:
                    await _look_again(trade, attempt, wait)
            case bus.Absent() if attempt.refusal:
                if await _leave_unknown(trade, attempt, "REJECTED", attempt.refusal):
                    await _reject(trade, attempt, attempt.refusal)
            case bus.Absent() if attempt.state == "UNKNOWN":
                if await _leave_unknown(trade, attempt, "PREPARED", "the exchange does not have it"):
                    # The exchange executes an identifier once, so a late call of the first sender does no harm.
                    await trade.events.publish(create_attempt(attempt.origin, attempt.intent_id, attempt.number))
            case bus.Absent() | bus.Unclear():
                await _look_again(trade, attempt, wait)


async def _is_stopped(trade: TradeTransaction, intent_id: str) -> bool:
    rows = await trade.rows(
        """SELECT kill_switch OR suspended_since IS NOT NULL AS stopped FROM everbit.market
           WHERE market = '*' OR market = (SELECT market FROM everbit.order_intent WHERE id = %(id)s)
           ORDER BY market FOR SHARE""",
        id=intent_id,
    )
    return any(row["stopped"] for row in rows)


async def _insert_attempt(trade: TradeTransaction, intent_id: str | UUID, number: int) -> None:
    await trade.rows(
        """INSERT INTO everbit.order_attempt (order_intent_id, attempt_no, identifier, market)
           SELECT id, %(number)s, %(identifier)s, market FROM everbit.order_intent WHERE id = %(intent)s
           ON CONFLICT DO NOTHING""",
        intent=intent_id,
        number=number,
        identifier=f"{intent_id}-{number}",
    )


async def _leave_sent(
    trade: TradeTransaction,
    attempt: OrderAttempt,
    state: str,
    note: str,
    lookup_after: timedelta | None = None,
    *,
    refusal: str = "",
) -> bool:
    """Record a negative answer. It counts only if the attempt was not sent again since."""
    row = await trade.row(
        """UPDATE everbit.order_attempt
           SET state = %(state)s, note = %(note)s, refusal = %(refusal)s,
               next_lookup_at = clock_timestamp() + %(wait)s::interval,
               unknown_since = CASE WHEN %(state)s = 'UNKNOWN' THEN clock_timestamp() END
           WHERE identifier = %(identifier)s AND state = 'SENT' AND sends = %(sends)s RETURNING id""",
        state=state,
        note=note,
        refusal=refusal,
        wait=lookup_after,
        identifier=attempt.identifier,
        sends=attempt.sends,
    )
    return row is not None


async def _leave_unknown(trade: TradeTransaction, attempt: OrderAttempt, state: str, note: str) -> bool:
    row = await trade.row(
        """UPDATE everbit.order_attempt
           SET state = %(state)s, note = %(note)s, next_lookup_at = NULL, unknown_since = NULL, lookups = 0
           WHERE identifier = %(identifier)s AND state = 'UNKNOWN' AND sends = %(sends)s RETURNING id""",
        state=state,
        note=note,
        identifier=attempt.identifier,
        sends=attempt.sends,
    )
    return row is not None


async def _accept(
    trade: TradeTransaction, attempt: OrderAttempt, exchange_uuid: str, note: str, lookup_after: timedelta
) -> None:
    """Record that the exchange has the order. It has the order whichever open state was recorded."""
    row = await trade.row(
        """UPDATE everbit.order_attempt
           SET state = 'ACKED', exchange_uuid = %(uuid)s, note = %(note)s, unknown_since = NULL, lookups = 0,
               next_lookup_at = clock_timestamp() + %(wait)s
           WHERE identifier = %(identifier)s AND state IN ('PREPARED', 'SENT', 'UNKNOWN') RETURNING id""",
        identifier=attempt.identifier,
        uuid=exchange_uuid,
        note=note,
        wait=lookup_after,
    )
    if row:
        await _move_intent(trade, attempt, "OPEN", "ACCEPTED")
        await trade.events.publish(attempt.event("OrderAccepted", exchangeUuid=exchange_uuid))


async def _fill(trade: TradeTransaction, attempt: OrderAttempt, exchange_uuid: str) -> None:
    if await _move_intent(trade, attempt, "ACCEPTED", "FILLED"):
        await trade.events.publish(attempt.event("OrderFilled", exchangeUuid=exchange_uuid))
    await trade.rows(
        "UPDATE everbit.order_attempt SET next_lookup_at = NULL WHERE identifier = %(identifier)s",
        identifier=attempt.identifier,
    )


async def _reject(trade: TradeTransaction, attempt: OrderAttempt, reason: str) -> None:
    await _move_intent(trade, attempt, "OPEN", "REJECTED")
    await trade.events.publish(attempt.event("OrderRejected", reason=reason))


async def _open_next(trade: TradeTransaction, attempt: OrderAttempt, wait: timedelta) -> None:
    """Open the attempt after a throttled one. Its command is due when the exchange accepts calls again."""
    await _insert_attempt(trade, attempt.intent_id, attempt.number + 1)
    command = create_attempt(attempt.origin, attempt.intent_id, attempt.number + 1)
    await trade.events.publish(command, at=datetime.now(UTC) + wait)


async def _look_again(trade: TradeTransaction, attempt: OrderAttempt, wait: timedelta) -> None:
    await trade.rows(
        """UPDATE everbit.order_attempt SET lookups = lookups + 1, next_lookup_at = clock_timestamp() + %(wait)s
           WHERE identifier = %(identifier)s AND state IN ('UNKNOWN', 'ACKED')""",
        identifier=attempt.identifier,
        wait=wait,
    )


async def _move_intent(trade: TradeTransaction, attempt: OrderAttempt, source: str, target: str) -> bool:
    row = await trade.row(
        """UPDATE everbit.order_intent SET state = %(target)s WHERE id = %(id)s AND state = %(source)s RETURNING id""",
        id=attempt.intent_id,
        source=source,
        target=target,
    )
    return row is not None
