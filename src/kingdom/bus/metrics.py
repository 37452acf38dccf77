"""The metrics of the bus. Reading them never counts all rows of a large table."""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kingdom.bus.delivery import Delivery
from kingdom.bus.operations import Operations, StreamStats
from kingdom.bus.outcome import AnyOutcome, Done
from kingdom.bus.throughput import HandledCounts

PREFIX = "kingdom"


class BatchHistogram(Histogram):
    """A histogram that takes many durations at once, because a call of `observe` takes longer than a short handler."""

    def observe_all(self, seconds: Sequence[float]) -> None:
        """Add durations."""
        buckets = [0] * len(self._upper_bounds)
        for each in seconds:
            buckets[bisect_left(self._upper_bounds, each)] += 1
        self._sum.inc(sum(seconds))
        for bucket, count in zip(self._buckets, buckets, strict=True):
            if count:
                bucket.inc(count)


class WorkerMetrics:
    """The counters and durations of one worker process."""

    def __init__(self, registry: CollectorRegistry | None = None, *, prefix: str = PREFIX) -> None:
        self._processed = Counter(
            f"{prefix}_outbox_processed",
            "Settled deliveries by result",
            ["stream", "result"],
            registry=registry,
        )
        self._duration = BatchHistogram(
            f"{prefix}_outbox_handler_duration_seconds",
            "Time spent in handlers",
            ["stream", "eventType"],
            registry=registry,
        )
        self._lost = Counter(
            f"{prefix}_outbox_lease_lost", "Deliveries whose lease was lost", ["stream"], registry=registry
        )
        self._no_handler = Counter(
            f"{prefix}_outbox_no_handler",
            "Deliveries deferred because the process has no handler for them",
            ["stream", "eventType"],
            registry=registry,
        )
        self._results: dict[tuple[str, type[AnyOutcome]], Counter] = {}
        self._durations: dict[tuple[str, str], BatchHistogram] = {}
        # The moving average of handler durations per stream.
        self.seconds_per_event: dict[str, float] = {}
        self.handled = HandledCounts()

    def record_handled(self, stream: str, event_type: str, seconds: Sequence[float]) -> None:
        """Record the handler durations of some events of one type."""
        labels = (stream, event_type)
        histogram = self._durations.get(labels)
        if histogram is None:
            histogram = self._durations[labels] = self._duration.labels(*labels)
        histogram.observe_all(seconds)
        average = self.seconds_per_event.get(stream, seconds[0])
        for each in seconds:
            average += (each - average) / 8
        self.seconds_per_event[stream] = average

    def count_settled(self, stream: str, outcome: type[AnyOutcome], count: int) -> None:
        """Count settled deliveries of one stream with the same outcome."""
        counter = self._results.get((stream, outcome))
        if counter is None:
            counter = self._results[stream, outcome] = self._processed.labels(stream, outcome.__name__.lower())
        counter.inc(count)
        if outcome is Done:
            self.handled.add(stream, count)

    def count_lost(self, delivery: Delivery) -> None:
        """Count a delivery whose lease was lost."""
        self._lost.labels(delivery.stream).inc()

    def count_no_handler(self, delivery: Delivery) -> None:
        """Count an event without a handler in this process."""
        self._no_handler.labels(delivery.stream, delivery.envelope.type).inc()


class Gauges:
    """Gauges of the current state. If a refresh has no value for a label, the label is removed."""

    def __init__(self) -> None:
        self._shown: dict[Gauge, frozenset[str]] = {}

    def _show(self, gauge: Gauge, values: Mapping[str, float]) -> None:
        """Set the values of a gauge, and remove the labels that have no value. The gauge is not empty in between."""
        for gone in self._shown.get(gauge, frozenset()) - values.keys():
            gauge.remove(gone)
        for label, value in values.items():
            gauge.labels(label).set(value)
        self._shown[gauge] = frozenset(values)


class BacklogMetrics(Gauges):
    """The backlog of the store, refreshed by the process that serves the metrics."""

    def __init__(self, registry: CollectorRegistry, *, prefix: str = PREFIX) -> None:
        super().__init__()

        def gauge(name: str, text: str, label: str = "stream") -> Gauge:
            return Gauge(f"{prefix}_outbox_{name}", text, [label], registry=registry)

        self._pending = gauge("pending", "Events waiting; counting stops at 10000")
        self._processing = gauge("processing", "Events under a lease")
        self._dead = gauge("dead", "Dead letters; counting stops at 10000")
        self._oldest = gauge("oldest_pending_seconds", "Age of the oldest event that is due")
        self._paused = gauge("paused", "1 while the stream is paused")
        pinned = "Age of each transaction that keeps vacuum from removing old row versions; 0 for a replication slot"
        self._pin = gauge("xmin_pinned_seconds", pinned, "holder")

    async def refresh(self, operations: Operations, streams: Collection[str] = ()) -> None:
        """Read the store once and set all gauges. Each of `streams` is shown even if it is empty."""
        stats, pins = await operations.stats(), await operations.pins()
        busy = {row.stream for row in stats}
        idle = [
            StreamStats(stream=name, pending=0, processing=0, dead=0, oldest_pending_seconds=0, paused=None)
            for name in streams
            if name not in busy
        ]
        rows = [*stats, *idle]
        self._show(self._pending, {row.stream: row.pending for row in rows})
        self._show(self._processing, {row.stream: row.processing for row in rows})
        self._show(self._dead, {row.stream: row.dead for row in rows})
        self._show(self._oldest, {row.stream: row.oldest_pending_seconds for row in rows})
        self._show(self._paused, {row.stream: row.paused is not None for row in rows})
        self._show(self._pin, {pin.what: pin.age_seconds for pin in pins})


class CourierMetrics:
    """The number of events that the courier of a store has sent, and its lag."""

    def __init__(self, registry: CollectorRegistry, *, prefix: str = PREFIX) -> None:
        self._sent = Gauge(
            f"{prefix}_courier_sent_events", "Events that this process has sent to their transport", registry=registry
        )
        self._lag = Gauge(
            f"{prefix}_courier_lag_seconds", "Age of the oldest event that the courier has not sent", registry=registry
        )

    def show(self, *, sent_events: int, lag: timedelta) -> None:
        """Set all gauges."""
        self._sent.set(sent_events)
        self._lag.set(lag.total_seconds())
