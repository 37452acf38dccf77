"""Optional OpenTelemetry support: link the spans of publisher and handler across the bus."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import msgspec

from kingdom.bus.delivery import Delivery
from kingdom.bus.envelope import Envelope

_TRACER = "kingdom.bus"
TRACEPARENT = "traceparent"
_NO_SPAN: AbstractContextManager[object] = nullcontext()


@cache
def _opentelemetry() -> tuple[Any, Any] | None:
    """Return OpenTelemetry's trace module and W3C propagator, or None if the extra is not installed."""
    if find_spec("opentelemetry") is None:
        return None
    propagation = import_module("opentelemetry.trace.propagation.tracecontext")
    return import_module("opentelemetry.trace"), propagation.TraceContextTextMapPropagator()


def add_trace_context(envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
    """Return the envelopes with the trace context of the active span. Without a span, return them unchanged."""
    found = _opentelemetry()
    if found is None:
        return envelopes
    trace, propagator = found
    if trace.get_current_span() is trace.INVALID_SPAN:
        return envelopes
    carrier: dict[str, str] = {}
    propagator.inject(carrier)
    if TRACEPARENT not in carrier:
        return envelopes
    context = {TRACEPARENT: carrier[TRACEPARENT]}
    return [msgspec.structs.replace(each, attributes={**each.attributes, **context}) for each in envelopes]


def handler_spans() -> Callable[[Delivery], AbstractContextManager[object]]:
    """Return a function that opens a span for a handler. Without a tracer, the returned function does nothing.

    Call `handler_spans` once per group of handlers, because asking for the tracer costs more than a short handler.
    """
    found = _opentelemetry()
    if found is None or isinstance(found[0].get_tracer_provider(), found[0].ProxyTracerProvider):
        return _no_span
    return partial(_span, *found)


def _no_span(_: Delivery) -> AbstractContextManager[object]:
    return _NO_SPAN


def _span(trace: Any, propagator: Any, delivery: Delivery) -> AbstractContextManager[object]:
    """Return a span for a handler, with a link to the span of the publisher."""
    envelope = delivery.envelope
    context = propagator.extract(dict(envelope.attributes))
    publisher = trace.get_current_span(context).get_span_context()
    links = [trace.Link(publisher)] if publisher.is_valid else []
    attributes = {
        "messaging.system": "kingdom",
        "messaging.destination.name": delivery.stream,
        "messaging.message.id": str(envelope.event_id),
        "kingdom.event_type": envelope.type,
        "kingdom.trace_id": envelope.trace_id,
        "kingdom.attempt": delivery.attempt,
    }
    span: AbstractContextManager[object] = trace.get_tracer(_TRACER).start_as_current_span(
        f"handle {envelope.type}", links=links, attributes=attributes, kind=trace.SpanKind.CONSUMER
    )
    return span
