"""The figures of a stream on Kafka beside an ordered stream in PostgreSQL, and their bounds. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.race.figures import Bound

COST_SHARE_MAX = 0.6
RATE_RATIO_MIN = 1.5
LATENCY_MS_MAX = 150.0
# An index that has grown by a level reads one page more per probe.
GROWTH_MAX = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One measurement: processor time of PostgreSQL and of the client in µs per event, and events per second.

    `relay_us` is 0 for a stream in PostgreSQL.
    """

    publish_us: float
    relay_us: float
    drain_us: float
    relay_client_us: float
    drain_client_us: float
    relay_rate: float
    record_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All measurements of a run. Buffers are those that PostgreSQL reads to relay one tick of some events."""

    ordered: Sequence[Turn]
    kafka: Sequence[Turn]
    buffers_by_retained: Mapping[int, int]
    buffers_by_pinned_ticks: Mapping[int, int]
    latencies_ms: Sequence[float]

    @property
    def cost_share(self) -> float:
        """Return the cost of publish and relay for PostgreSQL, as a share of the cost of publish, claim and settle."""
        stored = statistics.median(turn.publish_us + turn.drain_us for turn in self.ordered)
        return statistics.median(turn.publish_us + turn.relay_us for turn in self.kafka) / stored

    @property
    def rate_ratio(self) -> float:
        """Return how many times faster a worker writes one record per event on Kafka: the median over the rounds."""
        pairs = zip(self.kafka, self.ordered, strict=True)
        return statistics.median(carried.record_rate / stored.record_rate for carried, stored in pairs)

    @property
    def p50_ms(self) -> float:
        """Return the median time from the commit of an event to its handler."""
        return statistics.median(self.latencies_ms)

    def count_bounds(self) -> list[Bound]:
        """Return the bounds of counts, which hold on every machine."""
        return [
            Bound("buffers, growth with retained events", _growth(self.buffers_by_retained), GROWTH_MAX),
            Bound("buffers, growth under a pinned transaction", _growth(self.buffers_by_pinned_ticks), GROWTH_MAX),
        ]

    def time_bounds(self) -> list[Bound]:
        """Return the bounds of times and rates. A short run has too few events for them."""
        return [
            Bound("processor time of PostgreSQL, publish and relay as a share", self.cost_share, COST_SHARE_MAX),
            Bound("rate with one record each, as a multiple", self.rate_ratio, RATE_RATIO_MIN, at_most=False),
            Bound("p50 in ms from commit to handler", self.p50_ms, LATENCY_MS_MAX),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the medians of all figures."""
        return {
            "orderedMicroseconds": _medians(self.ordered),
            "kafkaMicroseconds": _medians(self.kafka),
            "costShare": round(self.cost_share, 3),
            "rateRatio": round(self.rate_ratio, 2),
            "p50Milliseconds": round(self.p50_ms, 1),
            "buffersByRetained": dict(self.buffers_by_retained),
            "buffersByPinnedTicks": dict(self.buffers_by_pinned_ticks),
        }


def _growth(buffers: Mapping[int, int]) -> float:
    """Return the buffers of the largest size as a multiple of those of the smallest."""
    return buffers[max(buffers)] / buffers[min(buffers)]


def _medians(turns: Sequence[Turn]) -> dict[str, float]:
    return {
        "publish": round(statistics.median(turn.publish_us for turn in turns), 1),
        "relay": round(statistics.median(turn.relay_us for turn in turns), 1),
        "drain": round(statistics.median(turn.drain_us for turn in turns), 1),
        "relayClient": round(statistics.median(turn.relay_client_us for turn in turns), 1),
        "drainClient": round(statistics.median(turn.drain_client_us for turn in turns), 1),
        "relayPerSecond": round(statistics.median(turn.relay_rate for turn in turns)),
        "recordsPerSecond": round(statistics.median(turn.record_rate for turn in turns)),
    }
