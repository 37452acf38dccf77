"""Same key, same order: as they were published, and as the store has put them."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kingdom.verify.evidence import CopyId, Evidence
from kingdom.verify.violation import Violation, ViolationKind


class _Place(NamedTuple):
    """Where an event was published: its transaction and number in it; the time is that of the host's clock."""

    transaction: int
    number: int
    began: int
    confirmed: float


def disordered(evidence: Evidence) -> Iterator[Violation]:
    """Compare transactions as the log has them, and calls as the target saw them, with both orders."""
    places = _places(evidence)
    applied = [(facts["stream"], facts["event"]) for facts in evidence.applied]
    called = [(times[0]["stream"], times[0]["event"]) for times in evidence.accepted.values()]
    for verb, copies in (("applied", applied), ("called", called)):
        for line, events in _lines(evidence, copies).items():
            yield from _by_position(evidence, verb, line, events)
            yield from _by_publishing(places, verb, line, events)


def overtaken(evidence: Evidence) -> Iterator[Violation]:
    """Look for handlers behind a dead event that blocks its key, before an operator has decided what becomes of it."""
    decided: dict[str, list[int]] = defaultdict(list)
    for entry in evidence.entries("redriving", "discarding", "cancelling"):
        decided[entry.facts["event"]].append(entry.at)
    started: dict[CopyId, list[tuple[int, str]]] = defaultdict(list)
    for entry in evidence.entries("started"):
        stream, event = entry.facts["stream"], entry.facts["event"]
        started[evidence.line(stream, event)].append((entry.at, event))
    for entry in evidence.entries("settled"):
        for position, outcome in entry.facts["outcomes"].items():
            claim = next(iter(evidence.claims_of.get(int(position), ())), None)
            if outcome != "dead" or claim is None or evidence.streams[claim.stream].on_dead != "block":
                continue
            # An operator may know of it before the worker has written down that it is dead.
            until = min((at for at in decided[claim.event] if at > entry.facts["began"]), default=math.inf)
            line = evidence.line(claim.stream, claim.event)
            for at, event in started[line] if line[1] != claim.event else ():
                if entry.at < at < until:
                    detail = f"{event} ran though {claim.event}, which is ahead of it, was dead"
                    yield Violation(ViolationKind.OVERTAKEN, "/".join(line), detail)


def _lines(evidence: Evidence, copies: Sequence[CopyId]) -> dict[CopyId, list[str]]:
    lines: dict[CopyId, list[str]] = defaultdict(list)
    for stream, event in copies:
        # Where a dead event lets others pass, it comes after them when it is redriven.
        if event not in evidence.first_redriven or evidence.streams[stream].on_dead == "block":
            lines[evidence.line(stream, event)].append(event)
    return {line: events for line, events in lines.items() if len(events) > 1}


def _by_position(evidence: Evidence, verb: str, line: CopyId, events: Sequence[str]) -> Iterator[Violation]:
    furthest = 0
    for event in events:
        stored = evidence.stored.get((line[0], event))
        position = stored.position if stored else furthest
        if position < furthest:
            detail = f"position {position} was {verb} after position {furthest} of the same key"
            yield Violation(ViolationKind.ORDER, "/".join(line), detail)
        furthest = max(position, furthest)


def _by_publishing(places: dict[str, _Place], verb: str, line: CopyId, events: Sequence[str]) -> Iterator[Violation]:
    """Look for an event whose transaction was confirmed before that of one ahead of it began, or that came first in it.

    Nothing is asked of the store here: one that turns the order round gives out its positions accordingly.
    """
    latest = -math.inf
    numbers: dict[int, int] = {}
    for event in events:
        place = places.get(event)
        if place is None:
            continue
        if place.confirmed < latest:
            detail = f"{event} was {verb} after one that was published when it had been confirmed"
            yield Violation(ViolationKind.ORDER, "/".join(line), detail)
        if place.number < numbers.get(place.transaction, 0):
            detail = f"{event} was {verb} after one that came later in the same transaction"
            yield Violation(ViolationKind.ORDER, "/".join(line), detail)
        latest = max(latest, place.began)
        numbers[place.transaction] = max(place.number, numbers.get(place.transaction, 0))


def _places(evidence: Evidence) -> dict[str, _Place]:
    """Return where each event was published first; follow-ups count within their transaction only."""
    confirmed = {entry.facts["events"][0]: entry.at for entry in evidence.entries("published") if entry.facts["events"]}
    places: dict[str, _Place] = {}
    for number, entry in enumerate(evidence.entries("publishing")):
        events = [described["event"] for described in entry.facts["events"]]
        for index, event in enumerate(events):
            places.setdefault(event, _Place(number, index, entry.at, confirmed.get(events[0], math.inf)))
    for number, facts in enumerate(evidence.applied, start=1):
        for index, described in enumerate(facts.get("follow_ups", ())):
            places.setdefault(described["event"], _Place(-number, index, -1, math.inf))
    return places
