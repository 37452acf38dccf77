"""The system worker: it sets the kill switches that an event requests. `WebPush` notifies of every stop and start."""

from typing import Any

from examples.trading.markets import change_kill_switch
from examples.trading.store import TradeStore
from kingdom import bus


def register(dispatcher: bus.Dispatcher, store: TradeStore) -> None:
    """Register the reaction to a request from elsewhere, such as the web or a risk monitor."""

    @dispatcher.reaction("SetKillSwitch")
    async def set_kill_switch(event: bus.Event[dict[str, Any]], _transaction: bus.Transaction) -> None:
        """Set the switch in its own transaction, before the event is settled: setting it twice is harmless."""
        requested_at = event.envelope.occurred_at
        await change_kill_switch(store, event.payload["market"], requested_at, is_on=event.payload["on"])
