"""The page of metrics, from what fills a registry."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics import MetricWrapperBase

from kingdom.bus.metrics import BacklogMetrics, WorkerMetrics
from kingdom.cli.reference.markdown import beginning, code, table
from kingdom.court.metrics import CourtMetrics

_WORDS = """\
For Prometheus, over HTTP, at `/metrics` of the port that `--metrics-port` names; all but what a worker has done is
refreshed every 15 seconds. Only this machine can read them, unless `--metrics-host` says otherwise.

| Who serves | What |
| --- | --- |
| `kingdom up` | how the court and the store stand |
| `kingdom role chamberlain` | the same |
| `kingdom role`, another one | what its workers have done, and how the store stands |
| `kingdom role engine`, `kingdom bus work` | what the worker has done, and how the store stands |

A histogram has `_bucket`, `_sum` and `_count` behind its name, and a counter or histogram has a series `_created` too.
Counting stops at 10000, or at 1000 where that is said, so that a look costs the same however full the store is.
"""
_Kind = type[WorkerMetrics | BacklogMetrics | CourtMetrics]
_SECTIONS: Mapping[str, _Kind] = {
    "How the court stands": CourtMetrics,
    "What a worker has done": WorkerMetrics,
    "How the store stands": BacklogMetrics,
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
