"""A snapshot of a store, and the invariants that must always hold."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

Line = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One open or DEAD event. `ready` means that it has a time from which it can be claimed."""

    position: int
    event_id: UUID
    stream: str
    line: Line | None
    status: str
    ready: bool
    token: int
    attempt: int
    max_attempts: int
    crash_count: int

    @property
    def open(self) -> bool:
        return self.status != "DEAD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Live rows, the archive, the keys in use (with the position that blocks each, if any) and the leases."""

    rows: Sequence[Row]
    ended: Mapping[UUID, Sequence[str]]
    keys: Mapping[Line, int | None]
    leases: frozenset[int]

    def of(self, event_id: UUID) -> Row:
        return next(row for row in self.rows if row.event_id == event_id)

    def heads(self, line: Line) -> list[Row]:
        return [row for row in self.rows if row.line == line and row.open and row.ready]


def violations(picture: Picture) -> list[str]:
    """Return the broken invariants."""
    return [*_of_leases(picture), *_of_endings(picture), *_of_keys(picture)]


def _of_leases(picture: Picture) -> Iterator[str]:
    for row in picture.rows:
        if row.status == "PROCESSING" and row.token not in picture.leases:
            yield f"{row.position} is PROCESSING under the lease {row.token}, which does not exist"
        if row.attempt > row.max_attempts + 1:
            yield f"{row.position} was claimed {row.attempt} times, {row.max_attempts} are allowed"
        if row.open and row.line is None and not row.ready:
            yield f"{row.position} is open and not ordered, but can never be claimed"


def _of_endings(picture: Picture) -> Iterator[str]:
    live: dict[tuple[str, UUID], int] = defaultdict(int)
    for row in picture.rows:
        live[row.stream, row.event_id] += 1
    for (stream, event_id), count in live.items():
        if count + picture.ended.get(event_id, ()).count(stream) != 1:
            yield f"event {event_id} is in stream {stream} more than once"


def _of_keys(picture: Picture) -> Iterator[str]:
    lines: dict[Line, list[Row]] = defaultdict(list)
    for row in picture.rows:
        if row.line and row.open:
            lines[row.line].append(row)
    for line in picture.keys.keys() - lines.keys():
        if picture.keys[line] is None:
            yield f"key {line} is kept without open events and without a block"
    for line, rows in lines.items():
        if line not in picture.keys:
            yield f"key {line} has open events and is not kept"
            continue
        flying = [row for row in rows if row.status == "PROCESSING"]
        heads = [row for row in rows if row.ready]
        blocked = picture.keys[line] is not None
        if len(heads) != (0 if blocked else 1):
            positions = [row.position for row in heads]
            yield f"key {line} has the heads {positions}, {'blocked' if blocked else 'not blocked'}"
        if flying and heads and heads[0].status != "PROCESSING":
            yield f"key {line} has a head to claim while {flying[0].position} is in flight"
        if len({row.token for row in flying}) > 1:
            yield f"key {line} is in flight under two leases"
