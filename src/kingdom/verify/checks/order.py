"""Check that the events of a key are handled in the order of their publishing and of their positions."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kingdom.verify.evidence import CopyId, Evidence
from kingdom.verify.violation import Violation, ViolationKind


class _Publication(NamedTuple):
    """The publishing of an event. `transaction` identifies its transaction, and `number` is its place there.

    `began` and `confirmed` are the times before and after the transaction.
    """

    transaction: int
    number: int
    began: int
    confirmed: float


def order_violations(evidence: Evidence) -> Iterator[Violation]:
    """Find events of one key that were applied or called in another order than they were published or stored."""
    publications = _publications(evidence)
    applied = [(facts["stream"], facts["event"]) for facts in evidence.applied]
    called = [(times[0]["stream"], times[0]["event"]) for times in evidence.accepted.values()]
    for verb, copies in (("applied", applied), ("called", called)):
        for key, events in _group_by_key(evidence, copies).items():
            yield from _check_positions(evidence, verb, key, events)
            yield from _check_publishing(publications, verb, key, events)


def overtaken_dead_events(evidence: Evidence) -> Iterator[Violation]:
    """Find handlers that ran although a DEAD event blocked their key and no operator had resolved that event yet."""
    decided: dict[str, list[int]] = defaultdict(list)
    for entry in evidence.entries("redriving", "discarding", "cancelling"):
        decided[entry.facts["event"]].append(entry.at)
    started: dict[CopyId, list[tuple[int, str]]] = defaultdict(list)
    for entry in evidence.entries("started"):
        stream, event = entry.facts["stream"], entry.facts["event"]
        started[evidence.ordering_key(stream, event)].append((entry.at, event))
    for entry in evidence.entries("settled"):
        for position, outcome in entry.facts["outcomes"].items():
            claim = next(iter(evidence.claims_of.get(int(position), ())), None)
            if outcome != "dead" or claim is None or evidence.streams[claim.stream].on_dead != "block":
                continue
            # An operator may see the dead event before the worker has recorded its settlement.
            until = min((at for at in decided[claim.event] if at > entry.facts["began"]), default=math.inf)
            key = evidence.ordering_key(claim.stream, claim.event)
            for at, event in started[key] if key[1] != claim.event else ():
                if entry.at < at < until:
                    detail = f"{event} ran though {claim.event}, which is ahead of it, was dead"
                    yield Violation(ViolationKind.OVERTAKEN, "/".join(key), detail)


def _group_by_key(evidence: Evidence, copies: Sequence[CopyId]) -> dict[CopyId, list[str]]:
    by_key: dict[CopyId, list[str]] = defaultdict(list)
    for stream, event in copies:
        # If a dead event does not block its key, later events may run before it is redriven. So redriven events of
        # these streams are not checked.
        if event not in evidence.first_redriven or evidence.streams[stream].on_dead == "block":
            by_key[evidence.ordering_key(stream, event)].append(event)
    return {key: events for key, events in by_key.items() if len(events) > 1}


def _check_positions(evidence: Evidence, verb: str, key: CopyId, events: Sequence[str]) -> Iterator[Violation]:
    furthest = 0
    for event in events:
        stored = evidence.stored.get((key[0], event))
        position = stored.position if stored else furthest
        if position < furthest:
            detail = f"position {position} was {verb} after position {furthest} of the same key"
            yield Violation(ViolationKind.ORDER, "/".join(key), detail)
        furthest = max(position, furthest)


def _check_publishing(
    publications: dict[str, _Publication], verb: str, key: CopyId, events: Sequence[str]
) -> Iterator[Violation]:
    """Find events that ran after an event that was published later.

    This does not use the positions, because a store that reverses the order would also reverse the positions.
    """
    latest = -math.inf
    numbers: dict[int, int] = {}
    for event in events:
        publication = publications.get(event)
        if publication is None:
            continue
        if publication.confirmed < latest:
            detail = f"{event} was {verb} after an event that was published later"
            yield Violation(ViolationKind.ORDER, "/".join(key), detail)
        if publication.number < numbers.get(publication.transaction, 0):
            detail = f"{event} was {verb} after a later event of the same transaction"
            yield Violation(ViolationKind.ORDER, "/".join(key), detail)
        latest = max(latest, publication.began)
        numbers[publication.transaction] = max(publication.number, numbers.get(publication.transaction, 0))


def _publications(evidence: Evidence) -> dict[str, _Publication]:
    """Return the first publication of each event. The order of follow-ups is checked only within a transaction."""
    confirmed = {entry.facts["events"][0]: entry.at for entry in evidence.entries("published") if entry.facts["events"]}
    publications: dict[str, _Publication] = {}
    for number, entry in enumerate(evidence.entries("publishing")):
        events = [described["event"] for described in entry.facts["events"]]
        for index, event in enumerate(events):
            publications.setdefault(event, _Publication(number, index, entry.at, confirmed.get(events[0], math.inf)))
    for number, facts in enumerate(evidence.applied, start=1):
        for index, described in enumerate(facts.get("follow_ups", ())):
            publications.setdefault(described["event"], _Publication(-number, index, -1, math.inf))
    return publications
