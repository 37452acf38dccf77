"""From a signal of a strategy to the intent to trade."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from uuid import UUID, uuid4

from examples.trading.orders import create_attempt
from examples.trading.store import TradeStore
from examples.trading.streams import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """The decision of a strategy after a candle: to buy or to sell."""

    strategy_key: str
    market: str
    side: str
    krw: Decimal
    candle_at: datetime


async def record_signal(store: TradeStore, signal: Signal) -> UUID | None:
    """Store a signal, its intent and the command to execute it. Return None if the candle already has a signal.

    After a lost connection it is not known whether the transaction has committed: call this again.
    """
    signal_id, intent_id = uuid4(), uuid4()
    origin = Origin(owner_id=store.settings.owner_id, market=signal.market, strategy_key=signal.strategy_key)
    command = create_attempt(origin, intent_id, 1)
    async with store.transaction() as trade:
        await trade.rows("INSERT INTO everbit.market VALUES (%(m)s) ON CONFLICT DO NOTHING", m=signal.market)
        is_new = await trade.row(
            """INSERT INTO everbit.signal VALUES (%(id)s, %(key)s, %(market)s, %(side)s, %(candle)s)
               ON CONFLICT (strategy_key, market, candle_at) DO NOTHING RETURNING id""",
            id=signal_id,
            key=signal.strategy_key,
            market=signal.market,
            side=signal.side,
            candle=signal.candle_at,
        )
        if not is_new:
            return None
        await trade.rows(
            """INSERT INTO everbit.order_intent (id, signal_id, market, side, krw, owner_id, strategy_key, trace_id)
               VALUES (%(id)s, %(signal)s, %(market)s, %(side)s, %(krw)s, %(owner)s, %(key)s, %(trace)s)""",
            id=intent_id,
            signal=signal_id,
            market=signal.market,
            side=signal.side,
            krw=signal.krw,
            owner=origin.owner_id,
            key=signal.strategy_key,
            trace=command.trace_id,
        )
        await trade.events.publish(command)
    return intent_id
