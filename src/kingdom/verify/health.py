"""Faults and delays of the processes and the machine. The checks must not count them against the bus."""

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

from kingdom.verify.evidence import SECOND_NS, Evidence
from kingdom.verify.history import HistoryEntry

# The start and the end of a period, in nanoseconds.
Span = tuple[int, int]


class MachineHealth:
    """The faults, deaths and delays in a history."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self.end = evidence.history[-1].at if evidence.history else 0

    @cached_property
    def deaths(self) -> dict[str, int]:
        """Return the time at which each process ended."""
        return {entry.facts["process"]: entry.at for entry in self._evidence.entries("exited")}

    @cached_property
    def stops(self) -> dict[str, list[Span]]:
        """Return the periods in which the process of each slot was stopped."""
        stops: dict[str, list[Span]] = defaultdict(list)
        stopped_at: dict[str, int] = {}
        for entry in self._evidence.entries("fault", "continued", "exited"):
            slot = slot_of(entry.facts.get("process", ""))
            if entry.what == "fault":
                if slot and "seconds" in entry.facts:
                    stopped_at.setdefault(slot, entry.at)
            elif slot in stopped_at:
                stops[slot].append((stopped_at.pop(slot), entry.at))
        for slot, since in stopped_at.items():
            stops[slot].append((since, self.end))
        return stops

    @cached_property
    def late(self) -> list[Span]:
        """Return the periods in which the machine delayed the process that measures delays."""
        return [_period(entry) for entry in self._evidence.entries("late")]

    @cached_property
    def outages(self) -> list[Span]:
        """Return the periods of the faults that hit no single process, such as an outage of the store."""
        entries = (entry for entry in self._evidence.entries("fault") if "process" not in entry.facts)
        return [_period(entry) for entry in entries if "seconds" in entry.facts]

    def stopped(self, process: str, since: int, until: int) -> list[Span]:
        """Return the stops of a process that overlap a period."""
        return [span for span in self.stops.get(slot_of(process), []) if _overlap(span, (since, until))]

    def delay(self, since: int, until: int) -> int:
        """Return the total length of the delays and of the faults without a single victim that overlap a period."""
        return sum(end - begin for begin, end in (*self.late, *self.outages) if _overlap((begin, end), (since, until)))

    def absence(self, role: str, since: int, until: int) -> int:
        """Return how long no process of a role was running within a period."""
        return until - since - _covered(self._presences(role), since, until)

    def _presences(self, role: str) -> list[Span]:
        """Return the periods in which a process of a role was ready and not stopped."""
        found: list[Span] = []
        for entry in self._evidence.entries("ready"):
            if role_of(entry.process) == role:
                end = self.deaths.get(entry.process, self.end)
                begin = entry.at
                for stopped_at, continued_at in self.stopped(entry.process, begin, end):
                    found.append((begin, stopped_at))
                    begin = continued_at
                found.append((begin, end))
        return found

    def clock_was_wrong(self, since: int, until: int) -> bool:
        """Return whether a fault had changed a clock within a period."""
        return any(_overlap(span, (since, until)) for span in self._clock_faults)

    @cached_property
    def _clock_faults(self) -> list[Span]:
        entries = (entry for entry in self._evidence.entries("fault") if entry.facts["kind"].startswith("clock"))
        return [_period(entry) for entry in entries]


def role_of(process: str) -> str:
    """Return the role of a process, such as `worker` for `worker-1.7`."""
    return process.partition("-")[0]


def slot_of(process: str) -> str:
    """Return the fleet slot of a process, such as `worker-1` for `worker-1.7`."""
    return process.partition(".")[0]


def longest(spans: Iterable[Span], since: int, until: int) -> int:
    """Return the length of the longest span that overlaps a period."""
    return max((end - begin for begin, end in spans if _overlap((begin, end), (since, until))), default=0)


def _covered(spans: Iterable[Span], since: int, until: int) -> int:
    """Return how much of a period the spans cover together."""
    covered, reached = 0, since
    for begin, end in sorted(spans):
        covered += max(min(end, until) - max(begin, reached), 0)
        reached = max(reached, min(end, until))
    return covered


def _period(entry: HistoryEntry) -> Span:
    """Return the period of an entry that was written at the end of the period."""
    return entry.at - int(entry.facts["seconds"] * SECOND_NS), entry.at


def _overlap(one: Span, other: Span) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]
