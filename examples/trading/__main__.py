"""`python -m examples.trading`: create the tables, run workers, send a signal, stop a market, show the orders."""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial

import aiohttp
from prometheus_client import CollectorRegistry

from examples.trading import backtest, system
from examples.trading.exchange_client import ExchangeClient
from examples.trading.executor import ExecuteOrder
from examples.trading.markets import change_kill_switch
from examples.trading.notification import WebPush
from examples.trading.reconcile import Reconciler
from examples.trading.settings import Settings
from examples.trading.signals import Signal, record_signal
from examples.trading.store import TradeStore, create_tables, open_store
from examples.trading.streams import BACKTEST_EVENT, STOPS_AND_STARTS, SYSTEM_EVENT, TRADE_EVENT, WORKERS
from kingdom import bus
from kingdom.backends.postgres import PostgresOperations
from kingdom.bus.maintenance import run_retention, serving_metrics
from kingdom.bus.metrics import BacklogMetrics, WorkerMetrics
from kingdom.log_output import configure_logs

RECONCILE = "reconcile"
ROLES = (*WORKERS, RECONCILE)
_PREFIX = "everbit"
_PUSHED = {
    TRADE_EVENT: ("OrderAccepted", "OrderFilled", "OrderRejected"),
    BACKTEST_EVENT: ("BacktestCompleted",),
    SYSTEM_EVENT: STOPS_AND_STARTS,
}


def handlers(store: TradeStore, exchange: ExchangeClient, session: aiohttp.ClientSession) -> bus.Dispatcher:
    """Return the handlers of all streams. A worker uses those of its own streams."""
    dispatcher = bus.Dispatcher()
    dispatcher.effect("CreateOrderAttempt", ExecuteOrder(store, exchange))
    push = WebPush(store, session)
    for stream, types in _PUSHED.items():
        for event_type in types:
            dispatcher.effect(event_type, push, stream=stream)
    backtest.register(dispatcher)
    system.register(dispatcher, store)
    return dispatcher


async def work(settings: Settings, roles: Sequence[str], metrics_port: int | None) -> None:
    """Run the workers of some roles until SIGTERM or SIGINT."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(settings))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        exchange, registry = ExchangeClient(settings, session), CollectorRegistry()
        dispatcher, metrics = handlers(store, exchange, session), WorkerMetrics(registry, prefix=_PREFIX)
        parts: list[bus.Worker | Reconciler] = [
            bus.Worker(store.bus, dispatcher, WORKERS[role], metrics=metrics) for role in roles if role in WORKERS
        ]
        if RECONCILE in roles:
            parts.append(Reconciler(store, exchange))
        operations, backlog = PostgresOperations(store.bus), BacklogMetrics(registry, prefix=_PREFIX)
        refresh = partial(backlog.refresh, operations, store.bus.topology.names())
        await stack.enter_async_context(serving_metrics(registry, refresh, host="127.0.0.1", port=metrics_port))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, _stop, parts)
        print(f"working: {', '.join(roles)}", flush=True)  # noqa: T201 - what a person at a terminal waits for
        upkeep = asyncio.create_task(run_retention(operations, bus.Retention()))
        stack.callback(upkeep.cancel)
        await asyncio.gather(*(part.run() for part in parts))


def _stop(parts: Sequence[bus.Worker | Reconciler]) -> None:
    for part in parts:
        part.stop()


async def send_signal(settings: Settings, market: str, side: str, krw: Decimal) -> None:
    """Record a signal for the present minute."""
    candle_at = datetime.now(UTC).replace(second=0, microsecond=0)
    async with open_store(settings) as store:
        wanted = Signal(strategy_key="EXTREME_FLIP", market=market, side=side, krw=krw, candle_at=candle_at)
        intent = await record_signal(store, wanted)
    print(f"intent {intent}" if intent else "this candle already has a signal")  # noqa: T201 - the result


async def switch(settings: Settings, market: str, *, is_on: bool) -> None:
    """Set a kill switch at once. No worker needs to run for that."""
    async with open_store(settings) as store:
        await change_kill_switch(store, market, None, is_on=is_on)
    markets = "all markets" if market == "*" else market
    print(f"{markets}: kill switch {'on' if is_on else 'off'}")  # noqa: T201 - the result


async def show(settings: Settings) -> None:
    """Print every intent with its attempts, and every stopped market."""
    async with open_store(settings) as store, store.transaction() as trade:
        attempts = await trade.rows(
            """SELECT intent.state AS intent, intent.market, attempt_no, attempt.state, note
               FROM everbit.order_intent AS intent LEFT JOIN everbit.order_attempt AS attempt
                 ON intent.id = order_intent_id ORDER BY attempt.id"""
        )
        markets = await trade.rows("SELECT * FROM everbit.market WHERE kill_switch OR suspended_since IS NOT NULL")
    for row in attempts:
        attempt = (
            f"attempt {row['attempt_no']} {row['state']} {row['note']}".rstrip() if row["state"] else "no attempt yet"
        )
        print(f"{row['market']} intent {row['intent']} {attempt}")  # noqa: T201 - the result
    for row in markets:
        print(f"{row['market']} is stopped: {row['reason'] or 'kill switch'}")  # noqa: T201 - the result


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command."""
    options, settings = _parse(arguments), Settings.read()
    configure_logs(json=True, level=logging.INFO)
    match options.command:
        case "create":
            asyncio.run(create_tables(settings.database_url))
        case "work":
            asyncio.run(work(settings, options.role or ROLES, options.metrics_port))
        case "signal":
            asyncio.run(send_signal(settings, options.market, options.side, options.krw))
        case "switch":
            asyncio.run(switch(settings, options.market, is_on=options.state == "on"))
        case "show":
            asyncio.run(show(settings))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.trading", description=sys.modules[__name__].__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("create", help="create the tables, after `kingdom bus migrate`")
    working = commands.add_parser("work", help="run workers until SIGTERM")
    working.add_argument("role", nargs="*", type=_role, help=f"which workers; all if none is named: {', '.join(ROLES)}")
    working.add_argument("--metrics-port", type=int)
    signaling = commands.add_parser("signal", help="record a signal for the present minute")
    signaling.add_argument("market")
    signaling.add_argument("side", choices=("BUY", "SELL"))
    signaling.add_argument("krw", type=Decimal)
    switching = commands.add_parser("switch", help="stop a market, or all with '*'")
    switching.add_argument("market")
    switching.add_argument("state", choices=("on", "off"))
    commands.add_parser("show", help="show attempts and stopped markets")
    return parser.parse_args(arguments)


def _role(name: str) -> str:
    if name not in ROLES:
        raise argparse.ArgumentTypeError(f"there is no worker {name!r}; there are {', '.join(ROLES)}")
    return name


if __name__ == "__main__":
    main()
