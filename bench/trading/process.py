"""A process under test: `python -m bench.trading.process VARIANT work ROLE…`, or `… VARIANT feed COUNT RATE`.

VARIANT names the defect that is built into it, if any.
"""

import asyncio
import logging
import sys
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import structlog

from bench.trading.scene import AS_IT_IS
from bench.trading.variants import VARIANTS
from examples.trading import __main__ as trading
from examples.trading import signals
from examples.trading.settings import Settings
from examples.trading.store import open_store
from kingdom.log_output import configure_logs

MARKETS = ("KRW-BTC", "KRW-ETH", "KRW-SOL", "KRW-XRP")
_FIRST_CANDLE = datetime(2026, 2, 17, tzinfo=UTC)
_RETRY_SECONDS = 0.2
_log = structlog.get_logger("bench.trading")


def signal(number: int) -> signals.Signal:
    """Return the signal of a number. The same number always gives the same signal."""
    return signals.Signal(
        strategy_key="EXTREME_FLIP",
        market=MARKETS[number % len(MARKETS)],
        side=("BUY", "SELL")[number // len(MARKETS) % 2],
        krw=Decimal(10_000 + number),
        candle_at=_FIRST_CANDLE + timedelta(minutes=number),
    )


async def feed(count: int, per_second: float) -> None:
    """Record signals at a steady rate. After a crash or an error, those that exist already are skipped."""
    async with open_store(Settings.read()) as store:
        number, due = 0, time.monotonic()
        while number < count:
            try:
                is_new = await signals.record_signal(store, signal(number))
            except Exception as error:  # noqa: BLE001 - the database may be restarting
                _log.warning("signal failed, recording it again", number=number, error=repr(error))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            number += 1
            if is_new:
                due += 1 / per_second
                await asyncio.sleep(max(0.0, due - time.monotonic()))


async def _feed_when_possible(count: int, per_second: float) -> None:
    while True:
        try:
            return await feed(count, per_second)
        except Exception as error:  # noqa: BLE001 - the database may be restarting
            _log.warning("feeding failed, starting again", error=repr(error))
            await asyncio.sleep(_RETRY_SECONDS)


if __name__ == "__main__":
    variant, command, *words = sys.argv[1:]
    if variant != AS_IT_IS:
        VARIANTS[variant]()
    if command == "feed":
        configure_logs(json=True, level=logging.WARNING)
        asyncio.run(_feed_when_possible(int(words[0]), float(words[1])))
    else:
        trading.main([command, *words])
