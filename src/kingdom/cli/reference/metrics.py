"""The reference page of metrics."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics import MetricWrapperBase

from kingdom.bus.metrics import BacklogMetrics, CourierMetrics, WorkerMetrics
from kingdom.cli.reference.markdown import beginning, code, table
from kingdom.court.metrics import CourtMetrics
from kingdom.web.metrics import LogStreamMetrics, WebMetrics

_WORDS = """\
Prometheus metrics are served over HTTP at `/metrics` on the port of `--metrics-port`. The metrics of workers and of the
web server are always current; all others are refreshed every 15 seconds. Only this machine can read them, unless
`--metrics-host` names another address. With `KINGDOM_METRICS_PREFIX=shop`, the names of the metrics of workers and of
the store begin with `shop_outbox_` instead of `kingdom_outbox_`, and those of the courier with `shop_courier_`.

| Command | Metrics |
| --- | --- |
| `kingdom up` | the court and the store |
| `kingdom role chamberlain` | the court and the store |
| `kingdom role courier` | the courier |
| every other `kingdom role` | its workers and the store |
| `kingdom web` | its requests, its streams, and the store |
| `kingdom bus work` | its worker and the store |

The name of a histogram is followed by `_bucket`, `_sum` and `_count`; a counter or histogram also has a series
`_created`. Counting stops at 10000, or at 1000 where noted, so that a refresh costs the same however full the store is.
"""
_Kind = type[WorkerMetrics | BacklogMetrics | CourierMetrics | CourtMetrics | LogStreamMetrics | WebMetrics]
_SECTIONS: Mapping[str, _Kind] = {
    "Court": CourtMetrics,
    "Workers": WorkerMetrics,
    "Store": BacklogMetrics,
    "Courier": CourierMetrics,
    "Web": WebMetrics,
    "Live stream": LogStreamMetrics,
}


def page() -> str:
    """Return the page of the documentation."""
    return "\n".join([beginning("Metrics", "metrics", _WORDS), *_tables()])


def _tables() -> Iterator[str]:
    for title, kind in _SECTIONS.items():
        yield f"## {title}\n\n{kind.__doc__}\n"
        yield from table(("Metric", "Type", "Labels", "Meaning"), (_row(metric) for metric in _metrics(kind)))


def _metrics(kind: _Kind) -> list[MetricWrapperBase]:
    made = kind(CollectorRegistry())
    return [value for value in vars(made).values() if isinstance(value, MetricWrapperBase)]


def _row(metric: MetricWrapperBase) -> tuple[str, ...]:
    (family,) = metric.describe()
    name = f"{family.name}_total" if isinstance(metric, Counter) else family.name
    return code(name), family.type, ", ".join(map(code, metric._labelnames)), f"{family.documentation}."
