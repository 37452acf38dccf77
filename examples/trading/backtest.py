"""The backtest worker: it runs a strategy over past prices and publishes the result."""

from collections.abc import Sequence
from typing import Any

from examples.trading.streams import Origin
from kingdom import bus

# The strategy trades against a move of more than this share between two candles.
_EXTREME = 0.03


def register(dispatcher: bus.Dispatcher) -> None:
    """Register the handler of `everbit.backtest.command`."""
    dispatcher.reaction("RunBacktest")(run_backtest)


async def run_backtest(event: bus.Event[dict[str, Any]], transaction: bus.Transaction) -> None:
    """Store the result and publish it, in the transaction that settles the command: exactly once."""
    job, prices = str(event.payload["jobId"]), [float(price) for price in event.payload["prices"]]
    sides = [extreme_flip(prices[: end + 1]) for end in range(len(prices))]
    result = {"jobId": job, "trades": sum(map(bool, sides)), "profit": round(_profit(prices, sides), 6)}
    if await transaction.get("backtest", job):
        return
    await transaction.put(bus.Record(kind="backtest", id=job, state="completed", doc=result))
    envelope = event.envelope
    origin = Origin(
        owner_id=envelope.owner_id,
        market=envelope.attributes.get("market", ""),
        strategy_key=envelope.attributes.get("strategyKey", ""),
    )
    await transaction.publish(origin.envelope("BacktestCompleted", "Backtest", job, result))


def extreme_flip(prices: Sequence[float]) -> str | None:
    """Buy after an extreme fall, sell after an extreme rise."""
    if len(prices) < 2:  # noqa: PLR2004 - a move needs two prices
        return None
    move = prices[-1] / prices[-2] - 1
    if abs(move) < _EXTREME:
        return None
    return "BUY" if move < 0 else "SELL"


def _profit(prices: Sequence[float], sides: Sequence[str | None]) -> float:
    """Return the profit of holding one coin or none, as the signals say, until the last price."""
    profit, bought_at = 0.0, None
    for price, side in zip(prices, sides, strict=True):
        if side == "BUY" and bought_at is None:
            bought_at = price
        elif side == "SELL" and bought_at is not None:
            profit, bought_at = profit + price - bought_at, None
    return profit if bought_at is None else profit + prices[-1] - bought_at
