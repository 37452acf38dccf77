"""Faults and delays of the processes and the machine, so that the checks do not blame the bus for them."""

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

from kingdom.verify.evidence import SECOND_NS, Evidence, Facts

Span = tuple[int, int]


class MachineHealth:
    """The faults, deaths and delays in a history. All times are those of its entries."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self.end = evidence.history[-1].at if evidence.history else 0

    @cached_property
    def deaths(self) -> dict[str, int]:
        """Return when each process ended."""
        return {entry.facts["process"]: entry.at for entry in self._evidence.entries("exited")}

    @cached_property
    def stops(self) -> dict[str, list[Span]]:
        """Return when the process of each slot was stopped."""
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
        """Return when the machine delayed a process that only looks at the clock."""
        return self._lasting("late")

    @cached_property
    def outages(self) -> list[Span]:
        """Return when a fault made the store unavailable."""
        entries = (entry for entry in self._evidence.entries("fault") if "process" not in entry.facts)
        return [(entry.at - _lasted(entry.facts), entry.at) for entry in entries if "seconds" in entry.facts]

    def stopped(self, process: str, since: int, until: int) -> list[Span]:
        """Return when a process was stopped within a period."""
        return [span for span in self.stops.get(slot_of(process), []) if _overlap(span, (since, until))]

    def delay(self, since: int, until: int) -> int:
        """Return how long the machine or the store delayed all processes within a period."""
        return sum(end - begin for begin, end in (*self.late, *self.outages) if _overlap((begin, end), (since, until)))

    def absence(self, role: str, since: int, until: int) -> int:
        """Return how long no process of a role was running within a period."""
        return until - since - _covered(self._presences(role), since, until)

    def _presences(self, role: str) -> list[Span]:
        """Return when each process of a role was ready and not stopped."""
        found: list[Span] = []
        for entry in self._evidence.entries("ready"):
            if role_of(entry.process) == role:
                end = self.deaths.get(entry.process, self.end)
                begin = entry.at
                for stop, go_on in self.stopped(entry.process, begin, end):
                    found.append((begin, stop))
                    begin = go_on
                found.append((begin, end))
        return found

    def clock_was_wrong(self, since: int, until: int) -> bool:
        """Return whether a fault had changed a clock within a period."""
        return any(_overlap(span, (since, until)) for span in self._clock_faults)

    @cached_property
    def _clock_faults(self) -> list[Span]:
        entries = (entry for entry in self._evidence.entries("fault") if entry.facts["kind"].startswith("clock"))
        return [(entry.at - _lasted(entry.facts), entry.at) for entry in entries]

    def _lasting(self, what: str) -> list[Span]:
        return [(entry.at - _lasted(entry.facts), entry.at) for entry in self._evidence.entries(what)]


def role_of(process: str) -> str:
    """Return the role of a process: `worker` of `worker-1.7`."""
    return process.partition("-")[0]


def slot_of(process: str) -> str:
    """Return the fleet slot of a process: `worker-1` of `worker-1.7`."""
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


def _lasted(facts: Facts) -> int:
    return int(facts["seconds"] * SECOND_NS)


def _overlap(one: Span, other: Span) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]
