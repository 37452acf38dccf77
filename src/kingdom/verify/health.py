"""How well the processes and the machine were while something happened, so that no bound blames the bus for them."""

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

from kingdom.verify.evidence import SECOND_NS, Evidence, Facts

Span = tuple[int, int]


class MachineHealth:
    """Reads faults, deaths and delays out of the history; all times are those of its entries."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self.end = evidence.history[-1].at if evidence.history else 0

    @cached_property
    def deaths(self) -> dict[str, int]:
        """Return when each process ended, in whatever way."""
        return {entry.facts["process"]: entry.at for entry in self._evidence.entries("exited")}

    @cached_property
    def stops(self) -> dict[str, list[Span]]:
        """Return when the process in each place of the fleet stood still."""
        stops: dict[str, list[Span]] = defaultdict(list)
        standing: dict[str, int] = {}
        for entry in self._evidence.entries("fault", "continued", "exited"):
            place = place_of(entry.facts.get("process", ""))
            if entry.what == "fault":
                if place and "seconds" in entry.facts:
                    standing.setdefault(place, entry.at)
            elif place in standing:
                stops[place].append((standing.pop(place), entry.at))
        for place, since in standing.items():
            stops[place].append((since, self.end))
        return stops

    @cached_property
    def late(self) -> list[Span]:
        """Return when the machine let a process that only looks at the clock wait."""
        return self._lasting("late")

    @cached_property
    def outages(self) -> list[Span]:
        """Return when a fault kept the store itself from answering."""
        entries = (entry for entry in self._evidence.entries("fault") if "process" not in entry.facts)
        return [(entry.at - _lasted(entry.facts), entry.at) for entry in entries if "seconds" in entry.facts]

    def stopped(self, process: str, since: int, until: int) -> list[Span]:
        """Return when a process stood still within a time."""
        return [span for span in self.stops.get(place_of(process), []) if _overlap(span, (since, until))]

    def delay(self, since: int, until: int) -> int:
        """Return for how long the machine or the store kept everybody waiting within a time."""
        return sum(end - begin for begin, end in (*self.late, *self.outages) if _overlap((begin, end), (since, until)))

    def absence(self, role: str, since: int, until: int) -> int:
        """Return for how long nobody of a role was at work within a time: dead, starting, or stopped."""
        return until - since - _covered(self._presences(role), since, until)

    def _presences(self, role: str) -> list[Span]:
        """Return when each process of a role was ready, but for its stops."""
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
        """Tell whether a fault had set a clock within a time."""
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


def place_of(process: str) -> str:
    """Return the place in the fleet that a process holds: `worker-1` of `worker-1.7`."""
    return process.partition(".")[0]


def longest(spans: Iterable[Span], since: int, until: int) -> int:
    """Return the length of the longest of the spans that overlap a time."""
    return max((end - begin for begin, end in spans if _overlap((begin, end), (since, until))), default=0)


def _covered(spans: Iterable[Span], since: int, until: int) -> int:
    """Return for how long at least one of the spans lasted within a time."""
    covered, reached = 0, since
    for begin, end in sorted(spans):
        covered += max(min(end, until) - max(begin, reached), 0)
        reached = max(reached, min(end, until))
    return covered


def _lasted(facts: Facts) -> int:
    return int(facts["seconds"] * SECOND_NS)


def _overlap(one: Span, other: Span) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]
