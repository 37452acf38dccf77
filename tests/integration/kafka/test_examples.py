"""The examples with all of their streams on Kafka: only the transport of the streams changes, and no handler."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from bench.servers import free_port
from examples import orders
from examples.bank import Bank
from examples.trading import store as trade_store
from examples.trading.__main__ import handlers
from examples.trading.exchange import read_book
from examples.trading.exchange_client import ExchangeClient
from examples.trading.markets import change_kill_switch
from examples.trading.push_service import read_pushes
from examples.trading.reconcile import Reconciler
from examples.trading.settings import Settings
from examples.trading.signals import Signal, record_signal
from examples.trading.store import TradeStore, create_tables, open_store
from examples.trading.streams import topology as trade_topology
from kingdom.backends.kafka import Brokers, Courier, KafkaBus
from kingdom.backends.postgres import PostgresBus
from kingdom.bus import EFFECTS, Envelope, Topology
from tests.integration.running import at_work, eventually, rows

pytestmark = pytest.mark.kafka
CANDLE = datetime(2026, 2, 17, tzinfo=UTC)
SIGNAL = Signal(strategy_key="EXTREME_FLIP", market="KRW-BTC", side="BUY", krw=Decimal(10000), candle_at=CANDLE)


def on_kafka(topology: Topology) -> Topology:
    return Topology(replace(topology.stream(name), transport="kafka") for name in topology.names())


@asynccontextmanager
async def carrying(bus: PostgresBus, brokers: Brokers) -> AsyncIterator[None]:
    courier = Courier(bus, brokers)
    running = asyncio.create_task(courier.run())
    try:
        yield
    finally:
        courier.stop()
        await running


@pytest.fixture
def bank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bank]:
    with Bank(0) as bank:
        thread = threading.Thread(target=bank.serve_forever)
        thread.start()
        monkeypatch.setattr(orders, "bank", f"http://127.0.0.1:{bank.server_port}")
        yield bank
        bank.shutdown()
        thread.join()


async def test_an_order_is_remembered_and_charged_for_once(dsn: str, brokers: Brokers, bank: Bank) -> None:
    app, order = orders.app, {"id": "order-1", "amount": 42}
    async with (
        KafkaBus(dsn, on_kafka(app.topology), [*app.kinds, EFFECTS], brokers=brokers) as bus,
        carrying(bus, brokers),
        at_work(bus, app.dispatcher),
    ):
        await bus.publish(Envelope(type="OrderPlaced", payload=order, partition_key="order-1"))
        # Another caller requests the same payment.
        await bus.publish(Envelope(type="PaymentDue", payload=order))

        async def both_payments_are_done() -> bool:
            done = "SELECT id FROM kingdom.outbox_all WHERE stream = 'payments' AND status = 'DONE'"
            return len(await rows(bus, done)) == 2

        await eventually(both_payments_are_done)
        assert [row["id"] for row in await rows(bus, "SELECT id FROM kingdom.record WHERE kind = 'order'")] == [
            "order-1"
        ]
    assert list(bank.charges.values()) == [{"amount": 42}]


@pytest.fixture
def settings(tmp_path: Path, dsn: str) -> Iterator[Settings]:
    """The settings of the pipeline, with an exchange and a push service that run."""
    asyncio.run(create_tables(dsn))
    ports = {"exchange": free_port(), "push_service": free_port()}
    folders = {"exchange": "--book", "push_service": "--log"}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", f"examples.trading.{name}", folders[name], tmp_path, "--port", str(port)],
            stdout=subprocess.DEVNULL,
        )
        for name, port in ports.items()
    ]
    yield replace(
        Settings.read(),
        database_url=dsn,
        exchange_url=f"http://127.0.0.1:{ports['exchange']}",
        push_url=f"http://127.0.0.1:{ports['push_service']}",
    )
    for process in running:
        process.kill()
        process.wait()


@asynccontextmanager
async def pipeline(settings: Settings, brokers: Brokers) -> AsyncIterator[TradeStore]:
    async with (
        open_store(settings) as store,
        aiohttp.ClientSession() as session,
        carrying(store.bus, brokers),
        at_work(store.bus, handlers(store, exchange := ExchangeClient(settings, session), session)),
    ):
        reconciler = Reconciler(store, exchange)
        running = asyncio.create_task(reconciler.run())
        yield store
        reconciler.stop()
        await running


async def test_a_signal_becomes_one_order_and_its_owner_gets_a_push(
    settings: Settings, brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trade_store, "PostgresBus", partial(KafkaBus, brokers=brokers))
    monkeypatch.setattr(trade_store, "topology", lambda lease: on_kafka(trade_topology(lease)))
    async with pipeline(settings, brokers) as store:

        async def is_in(state: str) -> bool:
            async with store.transaction() as trade:
                return [each["state"] for each in await trade.rows("SELECT state FROM everbit.order_intent")] == [state]

        async def are_pushed() -> bool:
            return len(read_pushes(tmp_path)) == 4

        await change_kill_switch(store, "KRW-BTC", None, is_on=True)
        candle_at = datetime(2026, 2, 17, tzinfo=UTC)
        await record_signal(
            store,
            Signal(strategy_key="EXTREME_FLIP", market="KRW-BTC", side="BUY", krw=Decimal(10000), candle_at=candle_at),
        )
        await change_kill_switch(store, "KRW-BTC", None, is_on=False)
        await eventually(partial(is_in, "FILLED"))
        await eventually(are_pushed)
    texts = sorted(push["text"] for push in read_pushes(tmp_path))
    expected = ("KillSwitchChanged", "KillSwitchChanged", "OrderAccepted", "OrderFilled")
    assert texts == [f"KRW-BTC: {what}" for what in expected]
    assert [line["what"] for line in read_book(tmp_path) if line["what"] == "order"] == ["order"]
