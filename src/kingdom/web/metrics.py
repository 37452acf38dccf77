"""The metrics of the web server."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class WebMetrics:
    """The requests to one web process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "kingdom_web_requests",
            "Requests by route and status; 499 if the client left before the end",
            ["route", "status"],
            registry=registry,
        )
        self._duration = Histogram(
            "kingdom_web_request_duration_seconds", "Time spent on requests", ["route"], registry=registry
        )

    def record(self, route: str, status: int, seconds: float) -> None:
        """Record one request."""
        self._requests.labels(route, str(status)).inc()
        self._duration.labels(route).observe(seconds)


class LogStreamMetrics:
    """The live streams of one web process."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.clients = Gauge("kingdom_web_stream_clients", "Open streams", registry=registry)
        self.lag = Gauge(
            "kingdom_web_stream_lag_seconds",
            "Age of the oldest open transaction that newer log entries wait for; 0 if there is none",
            registry=registry,
        )
        self.dropped = Counter(
            "kingdom_web_stream_dropped", "Streams closed because the client was too slow", registry=registry
        )
