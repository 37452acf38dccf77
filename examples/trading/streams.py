"""The five streams, and the envelope that all of their events share."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from kingdom import bus

TRADE_COMMAND = "everbit.trade.command"
TRADE_EVENT = "everbit.trade.event"
BACKTEST_COMMAND = "everbit.backtest.command"
BACKTEST_EVENT = "everbit.backtest.event"
SYSTEM_EVENT = "everbit.system.event"
STOPS_AND_STARTS = ("KillSwitchChanged", "MarketSuspended", "MarketResumed")
# Which streams each worker handles. A process may be several workers.
WORKERS: Mapping[str, tuple[str, ...]] = {
    "order-executor": (TRADE_COMMAND,),
    "notification": (TRADE_EVENT, BACKTEST_EVENT),
    "backtest": (BACKTEST_COMMAND,),
    "system": (SYSTEM_EVENT,),
}


def topology(lease: timedelta) -> bus.Topology:
    """Declare the streams. A dead notification must not hold back the next one of its order."""
    retry = bus.RetryPolicy(cap=timedelta(seconds=60))

    def stream(name: str, *types: str, ordered: bool = False) -> bus.Stream:
        return bus.Stream(
            name=name, subscribes=frozenset(types), ordered=ordered, on_dead="skip", retry=retry, lease=lease
        )

    return bus.Topology(
        [
            stream(TRADE_COMMAND, "CreateOrderAttempt"),
            stream(TRADE_EVENT, "OrderAccepted", "OrderFilled", "OrderRejected", ordered=True),
            stream(BACKTEST_COMMAND, "RunBacktest"),
            stream(BACKTEST_EVENT, "BacktestCompleted"),
            stream(SYSTEM_EVENT, "SetKillSwitch", *STOPS_AND_STARTS, ordered=True),
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The headers that all events about one intent or market share."""

    owner_id: str
    market: str
    strategy_key: str = ""
    trace_id: str | None = None

    def envelope(self, event_type: str, aggregate: str, aggregate_id: str, payload: Mapping[str, Any]) -> bus.Envelope:
        """Return an event about an aggregate. Events of the same aggregate keep their order."""
        attributes = {"market": self.market} | ({"strategyKey": self.strategy_key} if self.strategy_key else {})
        event = bus.Envelope(
            type=event_type,
            payload=payload,
            owner_id=self.owner_id,
            partition_key=aggregate_id,
            aggregate_type=aggregate,
            aggregate_id=aggregate_id,
            attributes=attributes,
        )
        return replace(event, trace_id=self.trace_id) if self.trace_id else event
