"""Kill switches and suspended markets: whether orders may be sent."""

from datetime import datetime

from examples.trading.orders import OrderAttempt, create_attempt
from examples.trading.store import TradeStore, TradeTransaction
from examples.trading.streams import Origin

MARKET = "Market"


async def suspend_if_overdue(store: TradeStore, attempt: OrderAttempt, reason: str) -> None:
    """Suspend the market of an attempt that has been UNKNOWN for too long."""
    async with store.transaction() as trade:
        row = await trade.row(
            """UPDATE everbit.market SET suspended_since = clock_timestamp(), reason = %(reason)s
               WHERE market = %(market)s AND suspended_since IS NULL AND EXISTS (
                 SELECT FROM everbit.order_attempt WHERE identifier = %(identifier)s AND state = 'UNKNOWN'
                   AND unknown_since < clock_timestamp() - %(limit)s::interval)
               RETURNING market""",
            market=attempt.market,
            identifier=attempt.identifier,
            reason=reason,
            limit=store.settings.unknown_limit,
        )
        if row:
            payload = {"reason": reason, "identifier": attempt.identifier}
            origin = Origin(owner_id=attempt.origin.owner_id, market=attempt.market)
            await trade.events.publish(origin.envelope("MarketSuspended", MARKET, attempt.market, payload))


async def resume_resolved_markets(store: TradeStore) -> None:
    """Resume each suspended market that has no UNKNOWN attempt left."""
    async with store.transaction() as trade:
        rows = await trade.rows(
            """UPDATE everbit.market SET suspended_since = NULL, reason = ''
               WHERE suspended_since IS NOT NULL AND NOT EXISTS (
                 SELECT FROM everbit.order_attempt AS attempt
                 WHERE attempt.market = market.market AND state = 'UNKNOWN')
               RETURNING market"""
        )
        for row in rows:
            origin = Origin(owner_id=store.settings.owner_id, market=row["market"])
            await trade.events.publish(origin.envelope("MarketResumed", MARKET, row["market"], {}))
            await _repeat_commands(trade, row["market"])


async def change_kill_switch(store: TradeStore, market: str, requested_at: datetime | None, *, is_on: bool) -> None:
    """Set a kill switch and publish the change. A request that is older than the last change does nothing.

    A person who sets a switch directly gives no time: this request is always the newest, whatever the clocks show.
    """
    async with store.transaction() as trade:
        row = await trade.row(
            """INSERT INTO everbit.market AS known (market, kill_switch, kill_switch_at)
               VALUES (%(market)s, %(on)s, coalesce(%(at)s, clock_timestamp()))
               ON CONFLICT (market) DO UPDATE SET kill_switch = excluded.kill_switch,
                 kill_switch_at = greatest(known.kill_switch_at, excluded.kill_switch_at)
               WHERE %(at)s::timestamptz IS NULL OR known.kill_switch_at IS NULL OR known.kill_switch_at < %(at)s
               RETURNING market""",
            market=market,
            on=is_on,
            at=requested_at,
        )
        if row:
            origin = Origin(owner_id=store.settings.owner_id, market=market)
            await trade.events.publish(origin.envelope("KillSwitchChanged", MARKET, market, {"on": is_on}))
        if row and not is_on:
            await _repeat_commands(trade, market)


async def _repeat_commands(trade: TradeTransaction, market: str) -> None:
    """Publish the commands of PREPARED attempts again: the old ones ended without a call in the stopped market."""
    rows = await trade.rows(
        """SELECT order_intent_id, attempt_no, intent.market, owner_id, strategy_key, trace_id
           FROM everbit.order_attempt AS attempt JOIN everbit.order_intent AS intent ON intent.id = order_intent_id
           WHERE attempt.state = 'PREPARED' AND %(market)s IN ('*', attempt.market)""",
        market=market,
    )
    for row in rows:
        names = ("owner_id", "market", "strategy_key", "trace_id")
        origin = Origin(**{name: row[name] for name in names})
        await trade.events.publish(create_attempt(origin, row["order_intent_id"], row["attempt_no"]))
