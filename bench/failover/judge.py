"""Analyze failovers, including those in which the server lost acknowledged transactions."""

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kingdom.verify.checker import check
from kingdom.verify.evidence import CopyId, Evidence
from kingdom.verify.history import HistoryEntry
from kingdom.verify.violation import Violation, ViolationKind

FAILOVER = "failover"
_FINAL = frozenset({"done", "dead"})
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """The times of a kill, of the promotion of the standby, and of the next handled event."""

    killed: int
    promoted: int
    handled: int

    @property
    def seconds(self) -> float:
        """Return the time from the promotion to the next handled event."""
        return (self.handled - self.promoted) / _SECOND_NS

    @property
    def outage_seconds(self) -> float:
        """Return the time from the kill to the next handled event."""
        return (self.handled - self.killed) / _SECOND_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """The acknowledged transactions that the servers have lost.

    `events` are lost. Others were lost, and then `published_again`. `handled_again` events have lost a settlement.
    `unclosable` events close a call that is lost, so they can never be handled.
    """

    events: frozenset[str]
    unclosable: frozenset[str]
    published_again: frozenset[CopyId]
    handled_again: frozenset[CopyId]


def failovers(history: Sequence[HistoryEntry]) -> Iterator[Failover]:
    """Yield every failover after which an event was handled."""
    done = [(entry.facts["began"], entry.at) for entry in history if entry.what == "settled"]
    for entry in history:
        if entry.what == FAILOVER:
            killed, promoted = entry.facts["killed"], entry.facts["promoted"]
            handled = next((at for began, at in done if began > promoted), None)
            if handled is not None:
                yield Failover(killed=killed, promoted=promoted, handled=handled)


def losses(evidence: Evidence) -> Losses:
    """Compare acknowledged transactions with the final store."""
    acknowledged = {event for facts in evidence.facts_of("published") for event in facts["events"]}
    there = {event.event_id for event in evidence.events}
    calls = {evidence.described[event]["call"] for event in there if event in evidence.described}
    copies = _copies_by_claim(evidence.history)
    ends = Counter(
        copies[entry.process, token, position]
        for entry in evidence.history
        if entry.what == "settled"
        for token, position, outcome in _settlements(entry)
        if outcome in _FINAL
    )
    return Losses(
        events=frozenset(acknowledged - there),
        unclosable=frozenset(event for event in there if _closes(evidence, event) - calls),
        published_again=frozenset(
            (stream, event)
            for facts in evidence.facts_of("published")
            for event in facts.get("again", ())
            for stream in evidence.described[event]["streams"]
            if [stream, event] not in facts["duplicates"]
        ),
        handled_again=frozenset(copy for copy, times in ends.items() if times > 1),
    )


def disordered(evidence: Evidence, lost: Losses) -> Iterator[Violation]:
    """Find events that were handled out of order, except lost events that were published again."""
    applied = [facts for facts in evidence.applied if (facts["stream"], facts["event"]) not in lost.published_again]
    history = [
        entry
        for entry in evidence.history
        if entry.what != "accepted" or (entry.facts["stream"], entry.facts["event"]) not in lost.published_again
    ]
    left = replace(evidence, applied=applied, history=history)
    return (violation for violation in check(left) if violation.kind is ViolationKind.ORDER)


def stale_settlements(evidence: Evidence) -> Iterator[Violation]:
    """Find settlements that a server accepted although it had a newer claim of the event.

    A server that lost transactions may use a token twice, so claims are compared by process and time.
    """
    promotions = [facts["promoted"] for facts in evidence.facts_of(FAILOVER)]
    copies = _copies_by_claim(evidence.history)
    claims: dict[CopyId, list[HistoryEntry]] = defaultdict(list)
    for entry in evidence.history:
        if entry.what == "claimed":
            for _, event, *_ in entry.facts["events"]:
                claims[entry.facts["stream"], event].append(entry)
        elif entry.what == "settled":
            for token, position, outcome in _settlements(entry):
                copy = copies[entry.process, token, position]
                owner = _owner(claims[copy], promotions, entry)
                if owner is not None and (owner.process, owner.facts["token"]) != (entry.process, token):
                    detail = f"{entry.process} settled it as {outcome} though {owner.process} had claimed it later"
                    yield Violation(ViolationKind.STALE, copy[1], detail)
    tokens = {copy: event.token for copy, event in evidence.stored.items() if event.status == "DONE"}
    for facts in evidence.applied:
        done_under = tokens.get((facts["stream"], facts["event"]), facts["token"])
        if done_under != facts["token"]:
            detail = f"applied under token {facts['token']}, done under token {done_under}"
            yield Violation(ViolationKind.STALE, facts["event"], detail)


def _closes(evidence: Evidence, event: str) -> set[str]:
    closes = evidence.described[event].get("closes") if event in evidence.described else None
    return {closes} if closes else set()


def _owner(claims: Sequence[HistoryEntry], promotions: Sequence[int], settlement: HistoryEntry) -> HistoryEntry | None:
    """Return the last claim before a settlement began, on the server that accepted the settlement."""
    era = bisect(promotions, settlement.at)
    before = [c for c in claims if bisect(promotions, c.at) == era and c.at < settlement.facts["began"]]
    return before[-1] if before else None


def _settlements(entry: HistoryEntry) -> Iterator[tuple[int, int, str]]:
    for position, outcome in entry.facts["outcomes"].items():
        yield entry.facts["token"], int(position), outcome


def _copies_by_claim(history: Sequence[HistoryEntry]) -> dict[tuple[str, int, int], CopyId]:
    return {
        (entry.process, entry.facts["token"], position): (entry.facts["stream"], event)
        for entry in history
        if entry.what == "claimed"
        for position, event, *_ in entry.facts["events"]
    }
