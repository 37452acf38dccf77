"""What failovers have shown, also where the server itself forgot what it had acknowledged. Pure."""

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kingdom.bus.throwaway import StoredEvent
from kingdom.verify.finding import Finding, Kind
from kingdom.verify.history import Entry

FAILOVER = "failover"
_FINAL = frozenset({"done", "dead"})
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """When a primary was killed, when its standby was promoted, and when the first event was handled after that."""

    killed: int
    promoted: int
    handled: int

    @property
    def seconds(self) -> float:
        """Return how long nothing was handled after the promotion."""
        return max(0, self.handled - self.promoted) / _SECOND_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What the servers forgot though they had acknowledged it."""

    events: frozenset[str]
    settlements: int


def failovers(history: Sequence[Entry]) -> Iterator[Failover]:
    """Return every failover after which an event was handled."""
    done = [(entry.facts["began"], entry.at) for entry in history if entry.what == "settled"]
    for entry in history:
        if entry.what == FAILOVER:
            killed, promoted = entry.facts["killed"], entry.facts["promoted"]
            handled = next((at for began, at in done if began > killed), None)
            if handled is not None:
                yield Failover(killed=killed, promoted=promoted, handled=handled)


def losses(history: Sequence[Entry], stored: Sequence[StoredEvent]) -> Losses:
    """Compare what was acknowledged with what is there."""
    acknowledged = {event for entry in history if entry.what == "published" for event in entry.facts["events"]}
    ids = _ids_by_claim(history)
    ends = Counter(
        ids[entry.process, token, position]
        for entry in history
        if entry.what == "settled"
        for token, position, outcome in _settlements(entry)
        if outcome in _FINAL
    )
    return Losses(
        events=frozenset(acknowledged - {event.event_id for event in stored}),
        settlements=sum(times - 1 for times in ends.values()),
    )


def stale_settlements(
    history: Sequence[Entry], stored: Sequence[StoredEvent], applied: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    """Find settlements that were accepted though another claim of the event was newer, on the same server.

    Numbers may come twice where the server forgot them, so claims are told apart by process and time.
    """
    promotions = [entry.facts["promoted"] for entry in history if entry.what == FAILOVER]
    ids = _ids_by_claim(history)
    claims: dict[str, list[Entry]] = defaultdict(list)
    for entry in history:
        if entry.what == "claimed":
            for _, event, *_ in entry.facts["events"]:
                claims[event].append(entry)
        elif entry.what == "settled":
            for token, position, outcome in _settlements(entry):
                event = ids[entry.process, token, position]
                owner = _owner(claims[event], promotions, entry)
                if owner is not None and (owner.process, owner.facts["token"]) != (entry.process, token):
                    detail = f"{entry.process} settled it as {outcome} though {owner.process} had claimed it later"
                    yield Finding(Kind.STALE, event, detail)
    tokens = {event.event_id: event.token for event in stored if event.status == "DONE"}
    for facts in applied:
        token = tokens.get(facts["event"], facts["token"])
        if token != facts["token"]:
            detail = f"applied under token {facts['token']}, done under token {token}"
            yield Finding(Kind.STALE, facts["event"], detail)


def _owner(claims: Sequence[Entry], promotions: Sequence[int], settlement: Entry) -> Entry | None:
    """Return the last claim on the server that accepted a settlement, before that began."""
    era = bisect(promotions, settlement.at)
    before = [c for c in claims if bisect(promotions, c.at) == era and c.at < settlement.facts["began"]]
    return before[-1] if before else None


def _settlements(entry: Entry) -> Iterator[tuple[int, int, str]]:
    for position, outcome in entry.facts["outcomes"].items():
        yield entry.facts["token"], int(position), outcome


def _ids_by_claim(history: Sequence[Entry]) -> dict[tuple[str, int, int], str]:
    return {
        (entry.process, entry.facts["token"], position): event
        for entry in history
        if entry.what == "claimed"
        for position, event, *_ in entry.facts["events"]
    }
