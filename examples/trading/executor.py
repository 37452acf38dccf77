"""The order-executor worker: it sends each attempt once, and never decides what a lost answer means."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from examples.trading.exchange_client import ExchangeClient
from examples.trading.orders import begin_send, presume_unknown, record_answer
from examples.trading.store import TradeStore
from kingdom import bus

Command = bus.Event[dict[str, Any]]


class ExecuteOrder(bus.Effect[dict[str, Any]]):
    """Send the attempt that a command names.

    The ledger of the bus only remembers whether this command was begun. Whether the order was sent, and with which
    result, is in `order_attempt`, which several commands may share.
    """

    def __init__(self, store: TradeStore, exchange: ExchangeClient) -> None:
        self.target = bus.Target(
            name="exchange",
            idempotency=bus.Idempotency.IDENTIFIER,
            calls_per_second=store.settings.calls_per_second,
            open_for=timedelta(seconds=5),
        )
        self._store = store
        self._exchange = exchange

    def key(self, event: Command) -> str:
        """Return the id of the command. An attempt that was proven absent gets a new command."""
        return f"execute:{event.envelope.event_id}"

    def request(self, event: Command) -> Mapping[str, Any]:
        """Return the attempt to send."""
        return {"intent_id": event.payload["orderIntentId"], "number": event.payload["attemptNo"]}

    async def call(self, attempt: bus.Attempt) -> bus.CallResult:
        """Send the order outside of any transaction, unless its attempt is not PREPARED or its market is stopped."""
        order = await begin_send(self._store, **attempt.request)
        if order is None:
            return bus.Acked()
        answer = await self._exchange.place(order)
        await record_answer(self._store, order, answer)
        # After Throttled, the bus calls the exchange later. The command then sends nothing: its attempt is THROTTLED.
        return answer if isinstance(answer, bus.Throttled) else bus.Acked()

    async def reconcile(self, attempt: bus.Attempt) -> bus.ReconcileResult:
        """After a crash in `call`, return whether the attempt was sent. An attempt that is SENT becomes UNKNOWN."""
        return bus.Absent() if await presume_unknown(self._store, **attempt.request) else bus.Present()
