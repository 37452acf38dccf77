"""How many events each stream has handled in each minute of the last hour.

Every process counts what its workers have handled, and adds it to one record per stream every few seconds. So a reader
needs one query, however many events there are. A process that ends loses what it has counted since its last report.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery
from kingdom.clock import utc_now

_CURRENT = "current"
THROUGHPUT = RecordKind(name="throughput", directories={_CURRENT: "state/throughput"})
THROUGHPUT_QUERY = RecordQuery(kind=THROUGHPUT.name, limit=1000)
# A reader gets this many minutes. All of them have ended.
MINUTES_SHOWN = 60
# The current rate is the average of this many minutes.
_RATE_MINUTES = 5
# A record keeps more minutes than a reader gets, because the clocks of hosts differ.
_MINUTES_KEPT = 120
# How many counts of a stream and a minute wait for a report. A Worker in another application may never report any.
_UNREPORTED_MAX = 10_000
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamThroughput:
    """How many events a stream has handled in each of the 60 minutes before `until`, the oldest minute first."""

    stream: str
    until: datetime
    minutes: tuple[int, ...]

    @property
    def last_hour(self) -> int:
        """Return how many events were handled in all of these minutes."""
        return sum(self.minutes)

    @property
    def per_minute(self) -> float:
        """Return the current rate: how many events were handled per minute, on average over the last minutes."""
        return sum(self.minutes[-_RATE_MINUTES:]) / _RATE_MINUTES


class HandledCounts:
    """Counts the events that this process has handled, until they are added to the records."""

    def __init__(self, clock: Callable[[], datetime] = utc_now) -> None:
        self._clock = clock
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, stream: str, count: int) -> None:
        """Count events that were handled now. If too many counts wait for a report, the oldest is dropped."""
        self._counts[stream, _minute_key(self._clock())] += count
        if len(self._counts) > _UNREPORTED_MAX:
            del self._counts[next(iter(self._counts))]

    async def report(self, bus: Bus) -> None:
        """Add the counts to the records. If that fails, the counts stay for the next report."""
        if not self._counts:
            return
        reported = self._counts.copy()
        async with bus.transaction() as transaction:
            await _add(transaction, reported)
        self._counts -= reported


async def read_throughput(transaction: Transaction, now: datetime) -> list[StreamThroughput]:
    """Return the throughput of every stream that has handled events in the last hour."""
    until = now.replace(second=0, microsecond=0)
    keys = [_minute_key(until - number * _MINUTE) for number in range(MINUTES_SHOWN, 0, -1)]
    found = [
        StreamThroughput(stream=record.id, until=until, minutes=tuple(record.doc.get(key, 0) for key in keys))
        for record in await transaction.find(THROUGHPUT_QUERY)
    ]
    return [each for each in found if each.last_hour]


def sum_throughput(streams: Iterable[StreamThroughput]) -> list[int]:
    """Return how many events all streams together have handled in each minute."""
    return [sum(counts) for counts in zip(*(each.minutes for each in streams), strict=True)] or [0] * MINUTES_SHOWN


async def _add(transaction: Transaction, counts: Counter[tuple[str, str]]) -> None:
    streams = sorted({stream for stream, _ in counts})
    await transaction.read_ahead([(THROUGHPUT.name, stream) for stream in streams])
    for stream in streams:
        known = await transaction.get(THROUGHPUT.name, stream)
        record = known or Record(kind=THROUGHPUT.name, id=stream, state=_CURRENT)
        minutes = Counter(record.doc) + Counter({key: count for (name, key), count in counts.items() if name == stream})
        await transaction.put(record.replace(doc=dict(sorted(minutes.items())[-_MINUTES_KEPT:])))


def _minute_key(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%MZ}"
