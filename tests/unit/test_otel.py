import asyncio
from collections.abc import Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kingdom.backends.postgres import PostgresBus
from kingdom.bus import Dispatcher, Envelope, Event, Stream, Topology, Transaction, Worker
from kingdom.errors import Permanent
from tests.patience import PATIENCE_SECONDS

TOPOLOGY = Topology(
    [
        Stream(name="orders", subscribes=frozenset({"OrderPlaced"})),
        Stream(name="mail", subscribes=frozenset({"MailWanted"})),
    ]
)


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # The official setter works once per process. This one is undone after the test.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


async def handle(dsn: str, envelope: Envelope, dispatcher: Dispatcher, finished: asyncio.Event) -> None:
    async with PostgresBus(dsn, TOPOLOGY) as bus:
        with trace.get_tracer("test").start_as_current_span("publishing"):
            await bus.publish(envelope)
        worker = Worker(bus, dispatcher, ["orders", "mail"])
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(PATIENCE_SECONDS):
            await finished.wait()
        worker.stop()
        await running


def named(spans: Sequence[ReadableSpan], name: str) -> ReadableSpan:
    (found,) = [span for span in spans if span.name == name]
    return found


def identity(context: trace.SpanContext | None) -> tuple[int, int]:
    assert context is not None
    return context.trace_id, context.span_id


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    assert all(link.context.is_remote for link in span.links)
    return [identity(link.context) for link in span.links]


async def test_a_handler_span_links_to_the_span_of_its_publisher_across_the_bus(
    dsn: str, exporter: InMemorySpanExporter
) -> None:
    dispatcher, finished = Dispatcher(), asyncio.Event()

    @dispatcher.reaction("OrderPlaced")
    async def placed(_event: Event[object], transaction: Transaction) -> None:
        await transaction.publish(Envelope(type="MailWanted"))

    @dispatcher.reaction("MailWanted")
    async def mail(_event: Event[object], _transaction: Transaction) -> None:
        finished.set()

    envelope = Envelope(type="OrderPlaced")
    await handle(dsn, envelope, dispatcher, finished)
    spans = exporter.get_finished_spans()
    publishing, first, second = (
        named(spans, name) for name in ("publishing", "handle OrderPlaced", "handle MailWanted")
    )
    assert linked(first) == [identity(publishing.context)]
    assert linked(second) == [identity(first.context)]
    # A queue is not a call stack, so a handler's span is not a child of the publisher's span.
    assert first.parent is None
    assert second.parent is None
    assert first.kind is trace.SpanKind.CONSUMER
    assert first.attributes is not None
    assert first.attributes["messaging.message.id"] == str(envelope.event_id)
    assert first.attributes["messaging.destination.name"] == "orders"


async def test_a_failed_handler_leaves_a_failed_span(dsn: str, exporter: InMemorySpanExporter) -> None:
    dispatcher, finished = Dispatcher(), asyncio.Event()

    @dispatcher.reaction("OrderPlaced")
    async def placed(_event: Event[object], _transaction: Transaction) -> None:
        finished.set()
        raise Permanent("no such customer")

    await handle(dsn, Envelope(type="OrderPlaced"), dispatcher, finished)
    failed = [span for span in exporter.get_finished_spans() if span.name == "handle OrderPlaced"]
    assert failed
    assert all(span.status.status_code is trace.StatusCode.ERROR for span in failed)
    assert "no such customer" in str(failed[0].status.description)


async def test_without_a_provider_there_is_no_span_and_no_trace_context(dsn: str) -> None:
    dispatcher, finished = Dispatcher(), asyncio.Event()
    seen: list[Envelope] = []

    @dispatcher.reaction("OrderPlaced")
    async def placed(event: Event[object], _transaction: Transaction) -> None:
        seen.append(event.envelope)
        assert not trace.get_current_span().get_span_context().is_valid
        finished.set()

    await handle(dsn, Envelope(type="OrderPlaced"), dispatcher, finished)
    assert seen[0].attributes == {}
