"""The progress of the consumer of each stream in the partitions of its topic."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kingdom.backends.postgres.bus import PostgresBus
from kingdom.backends.postgres.faults import translate_errors

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class PartitionOwnership:
    """A partition of which this process is the owner under `epoch`. The offsets in `handled` are settled already."""

    epoch: int
    handled: Ranges
    takeovers: int

    @property
    def next_offset(self) -> int:
        """Return the first offset that is not settled."""
        return self.handled[0][1]

    def is_handled(self, offset: int) -> bool:
        """Return whether the event at an offset is settled."""
        # The ranges are in order, so a new offset needs one comparison.
        return offset < self.handled[-1][1] and any(start <= offset < end for start, end in self.handled)

    def settle(self, offsets: Ranges) -> "PartitionOwnership":
        """Return the partition after a transaction that has settled events at these offsets."""
        handled: list[tuple[int, int]] = []
        for start, end in sorted([*self.handled, *offsets]):
            if handled and start == handled[-1][1]:
                handled[-1] = (handled[-1][0], end)
            else:
                handled.append((start, end))
        return replace(self, handled=tuple(handled), takeovers=0)


def to_multirange(offsets: Iterable[tuple[int, int]]) -> str:
    """Return ranges of offsets as the text of a multirange."""
    return "{" + ",".join(f"[{start},{end})" for start, end in offsets) + "}"


def settlement(
    stream: str, topic: str, partitions: Mapping[int, PartitionOwnership], offsets: Mapping[int, Ranges]
) -> dict[str, Any]:
    """Return the parameters of the statement that records offsets by partition as handled."""
    numbers = sorted(partitions)
    return {
        "stream": stream,
        "topic": topic,
        "partitions": numbers,
        "epochs": [partitions[number].epoch for number in numbers],
        "known": [to_multirange(partitions[number].handled) for number in numbers],
        "offsets": [to_multirange(offsets[number]) for number in numbers],
    }


class Inbox:
    """Takes partitions for the consumer of one stream."""

    def __init__(self, bus: PostgresBus, stream: str) -> None:
        self._bus = bus
        self._stream = stream

    async def take_partition(self, topic: str, number: int, first: int) -> PartitionOwnership:
        """Become the owner of a partition. If it was never read, start at the offset `first`."""
        parameters = {"stream": self._stream, "topic": topic, "partition": number, "first": first}
        with translate_errors():
            async with self._bus.responsive_connection() as connection:
                ((row,),) = await connection.fetch((self._bus.queries["take_partition"], parameters))
        return PartitionOwnership(row["epoch"], tuple(zip(row["starts"], row["ends"], strict=True)), row["takeovers"])

    async def settle(
        self, topic: str, partitions: Mapping[int, PartitionOwnership], offsets: Mapping[int, Ranges]
    ) -> frozenset[int]:
        """Record offsets by partition as handled, and return the partitions. The statement says which are missing."""
        call = (self._bus.queries["settle_partitions"], settlement(self._stream, topic, partitions, offsets))
        with translate_errors():
            async with self._bus.responsive_connection() as connection:
                (rows,) = await connection.fetch(call)
        return frozenset(row["partition"] for row in rows)
