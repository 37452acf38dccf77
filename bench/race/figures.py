"""The figures of a race, their bounds and their goals. Pure."""

import statistics
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

ONE, HUNDRED, COPY = "publish one", "publish 100", "copy"
DRAIN, DRAIN_2, RECORD, RECORD_2, LATENCY = "drain", "drain 2", "record", "record 2", "latency"
COLUMNS = (ONE, HUNDRED, COPY, DRAIN, DRAIN_2, RECORD, RECORD_2, LATENCY)
BARE, BEST, KINGDOM, ORDERED = "bare", "bare-best", "kingdom", "kingdom-ordered"
# The rates of these peers must be lower in every column that they have.
POSTGRES_PEERS = ("pgmq", "pgqueuer", "procrastinate", "dbos")
SYNCED_NATS = "nats-sync"
# Processor time per event, client and server together, as a multiple of the bare loop's.
COST_BOUNDS = {
    (KINGDOM, ONE): 1.3,
    (KINGDOM, HUNDRED): 1.7,
    (KINGDOM, DRAIN): 1.25,
    (KINGDOM, DRAIN_2): 1.25,
    (KINGDOM, RECORD): 1.4,
    (KINGDOM, RECORD_2): 1.4,
    (ORDERED, ONE): 3.0,
    (ORDERED, HUNDRED): 2.8,
    (ORDERED, DRAIN): 1.8,
    (ORDERED, DRAIN_2): 1.8,
}
LATENCY_BOUND = 1.6
# Shares of the bare loop's rate. They are reported and not required, since rates depend on other load.
RATE_GOALS = {
    (KINGDOM, ONE): 0.85,
    (KINGDOM, HUNDRED): 0.7,
    (KINGDOM, DRAIN): 1.0,
    (KINGDOM, DRAIN_2): 0.85,
    (ORDERED, ONE): 0.35,
    (ORDERED, HUNDRED): 0.35,
    (ORDERED, DRAIN): 0.65,
    (ORDERED, DRAIN_2): 0.6,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One turn of a side: events per second, processor time per event, and latencies if it measured them."""

    rate: float
    client_us: float
    server_us: float
    p50_ms: float | None = None
    p99_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """The samples of one side in one column. Each figure is the median over the rounds."""

    samples: tuple[Sample, ...]

    @property
    def rate(self) -> float:
        """Return the events per second."""
        return statistics.median(sample.rate for sample in self.samples)

    @property
    def client_us(self) -> float:
        """Return the processor time per event in the client processes."""
        return statistics.median(sample.client_us for sample in self.samples)

    @property
    def server_us(self) -> float:
        """Return the processor time per event in the server."""
        return statistics.median(sample.server_us for sample in self.samples)

    @property
    def cost_us(self) -> float:
        """Return the processor time per event in clients and server together."""
        return statistics.median(sample.client_us + sample.server_us for sample in self.samples)

    @property
    def p50_ms(self) -> float | None:
        """Return the median latency."""
        return _median([sample.p50_ms for sample in self.samples])

    @property
    def p99_ms(self) -> float | None:
        """Return the latency that one event in a hundred exceeds."""
        return _median([sample.p99_ms for sample in self.samples])

    def to_json(self) -> dict[str, Any]:
        """Return the medians, every rate and every cost. With latencies, leave out the rates, which the sender sets."""
        figures: dict[str, Any] = {
            "clientMicroseconds": round(self.client_us, 2),
            "serverMicroseconds": round(self.server_us, 2),
            "costMicroseconds": round(self.cost_us, 2),
            "costs": [round(sample.client_us + sample.server_us, 2) for sample in self.samples],
        }
        if self.p50_ms is not None and self.p99_ms is not None:
            return {"p50Milliseconds": round(self.p50_ms, 2), "p99Milliseconds": round(self.p99_ms, 2), **figures}
        rates = [round(sample.rate, 1) for sample in self.samples]
        return {"rate": round(self.rate, 1), "rates": rates, **figures}


@dataclass(frozen=True, slots=True)
class Bound:
    """One figure with the value that it may not exceed or not fall below."""

    name: str
    value: float
    limit: float
    at_most: bool = True

    @property
    def holds(self) -> bool:
        """Return whether the bound holds. A figure that is not a number never does."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    @property
    def text(self) -> str:
        """Return the bound in words."""
        return f"{self.name}: {self.value:.2f}, {'at most' if self.at_most else 'at least'} {self.limit:.2f}"

    def to_json(self) -> dict[str, Any]:
        """Return the bound for the report."""
        limit = {"atMost" if self.at_most else "atLeast": round(self.limit, 3)}
        return {"name": self.name, "value": round(self.value, 3), **limit, "holds": self.holds}


@dataclass(slots=True)
class Figures:
    """The cells of a race by side and column, and the excluded sides. `demand` above 1 is stricter."""

    demand: float = 1.0
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def note(self, side: str, column: str, sample: Sample) -> None:
        """Add the sample of one turn."""
        known = self.cells.get((side, column), Cell(()))
        self.cells[side, column] = Cell((*known.samples, sample))

    def exclude(self, side: str, reason: str) -> None:
        """Remove a side that cannot run here, with all its samples."""
        self.absent[side] = reason
        self.cells = {key: cell for key, cell in self.cells.items() if key[0] != side}

    def sides(self) -> list[str]:
        """Return the sides that were measured, in their order."""
        return list(dict.fromkeys(side for side, _ in self.cells))

    def columns(self) -> list[str]:
        """Return the columns that were measured, in the order of the table."""
        measured = {column for _, column in self.cells}
        return [column for column in COLUMNS if column in measured]

    def bounds(self) -> list[Bound]:
        """Return the bounds of everything that was measured on both sides."""
        return [*self._cost_bounds(), *self._latency_bounds(), *self._peer_bounds()]

    def goals(self) -> list[Bound]:
        """Return the shares of the bare loop's rate with their goals."""
        return [
            Bound(f"{side}, {column}, share of the rate of bare", ours.rate / bare.rate, goal, at_most=False)
            for (side, column), goal in RATE_GOALS.items()
            for ours, bare in self._pairs(side, BARE, column)
        ]

    def complaints(self) -> list[str]:
        """Describe every bound that does not hold. A race without any bound proves nothing."""
        bounds = self.bounds()
        if not bounds:
            return ["nothing was measured that has a bound"]
        return [bound.text for bound in bounds if not bound.holds]

    def to_json(self, **facts: Any) -> dict[str, Any]:
        """Return everything as one object."""
        cells: dict[str, dict[str, Any]] = {}
        for (side, column), cell in self.cells.items():
            cells.setdefault(side, {})[column] = cell.to_json()
        failed = self.complaints()
        return {
            "bench": "race",
            **facts,
            "sides": cells,
            "notHere": self.absent,
            "bounds": [bound.to_json() for bound in self.bounds()],
            "goals": [goal.to_json() for goal in self.goals()],
            "failed": failed,
            "holds": not failed,
        }

    def _cost_bounds(self) -> Iterator[Bound]:
        for (side, column), limit in COST_BOUNDS.items():
            for ours, bare in self._pairs(side, BARE, column):
                name = f"{side}, {column}, processor time as a multiple of bare"
                yield Bound(name, ours.cost_us / bare.cost_us, limit / self.demand)

    def _latency_bounds(self) -> Iterator[Bound]:
        for ours, bare in self._pairs(KINGDOM, BARE, LATENCY):
            if ours.p50_ms is not None and bare.p50_ms is not None:
                name = f"{KINGDOM}, p50 of the latency as a multiple of bare"
                yield Bound(name, ours.p50_ms / bare.p50_ms, LATENCY_BOUND / self.demand)

    def _peer_bounds(self) -> Iterator[Bound]:
        for peer in POSTGRES_PEERS:
            for column in COLUMNS:
                yield from self._ahead_of(peer, column)
        yield from self._ahead_of(SYNCED_NATS, DRAIN_2)

    def _ahead_of(self, peer: str, column: str) -> Iterator[Bound]:
        for ours, theirs in self._pairs(KINGDOM, peer, column):
            if ours.p50_ms is not None and theirs.p50_ms is not None:
                ahead, what = theirs.p50_ms / ours.p50_ms, f"p50 of {peer} as a multiple of {KINGDOM}"
            else:
                ahead, what = ours.rate / theirs.rate, f"rate as a multiple of {peer}"
            yield Bound(f"{KINGDOM}, {column}, {what}", ahead, self.demand, at_most=False)

    def _pairs(self, side: str, other: str, column: str) -> Iterator[tuple[Cell, Cell]]:
        ours, theirs = self.cells.get((side, column)), self.cells.get((other, column))
        if ours and theirs:
            yield ours, theirs


def percentile(values: Collection[float], share: float) -> float:
    """Return a percentile of the values; `share` is between 0 and 1."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
