"""The reconcile worker: it looks up every order without an answer, and suspends a market if it cannot."""

import asyncio

import structlog

from examples.trading.exchange_client import ExchangeClient
from examples.trading.markets import resume_resolved_markets, suspend_if_overdue
from examples.trading.orders import OrderAttempt, claim_lookups, record_lookup
from examples.trading.store import TradeStore
from kingdom import bus

_BATCH = 50
_IDLE_SECONDS = 0.2
_log = structlog.get_logger("examples.trading")


class Reconciler:
    """Runs beside the workers of the bus, in any number of processes."""

    def __init__(self, store: TradeStore, exchange: ExchangeClient) -> None:
        self._store = store
        self._exchange = exchange
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Ask it to end."""
        self._stopping.set()

    async def run(self) -> None:
        """Look up what is due until stopped."""
        while not self._stopping.is_set():
            try:
                attempts = await claim_lookups(self._store, _BATCH)
                await asyncio.gather(*map(self._look_up, attempts))
                await resume_resolved_markets(self._store)
            except Exception as error:  # noqa: BLE001 - the database may be restarting; what was due stays due
                _log.warning("reconcile failed, trying again", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(_IDLE_SECONDS)

    async def _look_up(self, attempt: OrderAttempt) -> None:
        found = await self._exchange.look_up(attempt.identifier)
        await record_lookup(self._store, attempt, found)
        if isinstance(found, bus.Unclear):
            await suspend_if_overdue(self._store, attempt, found.reason)
