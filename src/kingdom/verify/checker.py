"""The checker: from the history and the final store to what went wrong. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from kingdom.bus.throwaway import StoredEvent
from kingdom.verify.history import Entry

_FINAL = frozenset({"done", "dead"})
# By itself, by a kill, or by a request that came before the process could listen to it.
_ENDED_AS_EXPECTED = frozenset({0, -9, -15})


class Kind(Enum):
    """What can be wrong; a trial is passed when there is nothing of any kind."""

    LOST = "events lost"
    TWICE = "reactions applied twice"
    REPEATED = "effects repeated"
    ORDER = "order violations"
    STALE = "stale writes accepted"
    STUCK = "events stuck"
    QUARANTINED = "healthy events quarantined"
    POISON = "poison not dead"
    ROLLED_BACK = "rolled-back events delivered"
    INVARIANT = "invariants broken"
    PROCESS = "processes failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that must not happen, with the event, key or process it happened to."""

    kind: Kind
    subject: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that is known after a trial; `applied` are the log's traces in the order of their transactions."""

    history: Sequence[Entry] = ()
    events: Sequence[StoredEvent] = ()
    applied: Sequence[Mapping[str, Any]] = ()
    tallies: Mapping[str, int] = field(default_factory=dict)

    def of(self, what: str) -> Iterator[Mapping[str, Any]]:
        """Return the facts of every action of a name, in the order of time."""
        return (entry.facts for entry in self.history if entry.what == what)

    @cached_property
    def stored(self) -> dict[str, StoredEvent]:
        """Return the stored events by their id."""
        return {event.event_id: event for event in self.events}

    @cached_property
    def meant(self) -> dict[str, Mapping[str, Any]]:
        """Return the description of every event that somebody meant to publish."""
        sources = (*self.of("publishing"), *({"events": facts.get("follow_ups", ())} for facts in self.applied))
        return {described["event"]: described for facts in sources for described in facts["events"]}

    @cached_property
    def committed(self) -> set[str]:
        """Return the events whose publishing was confirmed, follow-ups of applied reactions among them."""
        confirmed = {event for facts in self.of("published") for event in facts["events"]}
        return confirmed | {d["event"] for facts in self.applied for d in facts.get("follow_ups", ())}

    @cached_property
    def rolled_back(self) -> set[str]:
        """Return the events that were taken back for certain."""
        return {event for facts in self.of("rolled_back") for event in facts["events"]}

    @cached_property
    def accepted(self) -> dict[str, list[Mapping[str, Any]]]:
        """Return what the target did, by key of the call."""
        calls: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for facts in self.of("accepted"):
            calls[facts["key"]].append(facts)
        return calls

    def healthy(self, event_id: str) -> bool:
        """Tell whether an event must end as done."""
        return event_id in self.meant and self.meant[event_id]["fate"] == "done"


def check(evidence: Evidence) -> list[Finding]:
    """Return everything that went wrong."""
    checks = (_lost, _twice, _repeated, _disordered, _stale, _ended_wrong, _delivered_rolled_back, _broken)
    return [finding for each in checks for finding in each(evidence)]


def _lost(evidence: Evidence) -> Iterator[Finding]:
    traced = {facts["event"] for facts in evidence.applied}
    for event_id in sorted(evidence.committed):
        stored = evidence.stored.get(event_id)
        if stored is None:
            yield Finding(Kind.LOST, event_id, "published and committed, but nowhere in the store")
        elif stored.status == "DONE" and evidence.healthy(event_id):
            call = evidence.meant[event_id]["call"]
            if call and call not in evidence.accepted:
                yield Finding(Kind.LOST, event_id, f"done, but its call {call} never arrived")
            elif not call and event_id not in traced:
                yield Finding(Kind.LOST, event_id, "done, but its reaction left no trace")
    for tally, traces, count in _tallies(evidence):
        if count < traces:
            yield Finding(Kind.LOST, tally, f"its record counts {count} of {traces} applied reactions")


def _twice(evidence: Evidence) -> Iterator[Finding]:
    applied = Counter(facts["event"] for facts in evidence.applied)
    for event_id, times in applied.items():
        if times > 1:
            tokens = [facts["token"] for facts in evidence.applied if facts["event"] == event_id]
            yield Finding(Kind.TWICE, event_id, f"applied {times} times, under the tokens {tokens}")
    for tally, traces, count in _tallies(evidence):
        if count > traces:
            yield Finding(Kind.TWICE, tally, f"its record counts {count}, the log has {traces} applied reactions")
    for event_id in {facts["event"] for facts in evidence.of("once_refused")} & applied.keys():
        yield Finding(Kind.TWICE, event_id, "its dedup key was taken by an earlier application")


def _tallies(evidence: Evidence) -> Iterator[tuple[str, int, int]]:
    traces = Counter(facts["tally"] for facts in evidence.applied if "tally" in facts)
    for tally in sorted(traces.keys() | evidence.tallies.keys()):
        yield tally, traces[tally], evidence.tallies.get(tally, 0)


def _repeated(evidence: Evidence) -> Iterator[Finding]:
    for call, times in evidence.accepted.items():
        if len(times) > 1:
            how = ", ".join(f"{facts['identifier']} under fence {facts['fence']}" for facts in times)
            yield Finding(Kind.REPEATED, call, f"the target did it {len(times)} times: {how}")


def _disordered(evidence: Evidence) -> Iterator[Finding]:
    """Compare positions within a key, between transactions as the log has them and calls as the target saw them."""
    yield from _inversions(evidence, "applied", (facts["event"] for facts in evidence.applied))
    first_of_each = (times[0]["event"] for times in evidence.accepted.values())
    yield from _inversions(evidence, "called", first_of_each)


def _inversions(evidence: Evidence, verb: str, events: Iterable[str]) -> Iterator[Finding]:
    latest: dict[tuple[str, str], StoredEvent] = {}
    for event_id in events:
        stored = evidence.stored.get(event_id)
        if stored is None or stored.partition_key is None:
            continue
        line = (stored.stream, stored.partition_key)
        before = latest.get(line)
        if before is not None and before.position > stored.position:
            detail = f"position {stored.position} was {verb} after position {before.position} of the same key"
            yield Finding(Kind.ORDER, "/".join(line), detail)
        else:
            latest[line] = stored


def _stale(evidence: Evidence) -> Iterator[Finding]:
    """Look for settlements under an old token: a final one ends all claims, so a newer claim proves it came too late.

    One that gives the event back may be followed by newer claims; it is stale where such a claim was there before it.
    """
    claims: dict[str, dict[int, int]] = defaultdict(dict)
    for entry in evidence.history:
        if entry.what == "claimed":
            for position, *_ in entry.facts["events"]:
                claims[str(position)][entry.facts["token"]] = entry.at
    for facts in evidence.of("settled"):
        for position, outcome in facts["outcomes"].items():
            newer = [at for token, at in claims[position].items() if token > facts["token"]]
            if newer and (outcome in _FINAL or min(newer) < facts["began"]):
                detail = f"token {facts['token']} settled it as {outcome} though token {max(claims[position])} owned it"
                yield Finding(Kind.STALE, position, detail)
    for applied in evidence.applied:
        stored = evidence.stored.get(applied["event"])
        if stored and stored.status == "DONE" and stored.token != applied["token"]:
            detail = f"applied under token {applied['token']}, done under token {stored.token}"
            yield Finding(Kind.STALE, str(stored.position), detail)


def _ended_wrong(evidence: Evidence) -> Iterator[Finding]:
    for stored in evidence.events:
        where = f"{stored.stream} position {stored.position}"
        if stored.status in ("PENDING", "PROCESSING"):
            yield Finding(Kind.STUCK, stored.event_id, f"{where} is still {stored.status}")
        if evidence.healthy(stored.event_id):
            if stored.status == "DEAD":
                yield Finding(Kind.QUARANTINED, stored.event_id, f"{where} is dead by {stored.error_code}")
        elif stored.event_id in evidence.meant and stored.status != "DEAD":
            yield Finding(Kind.POISON, stored.event_id, f"{where} is {stored.status}")


def _delivered_rolled_back(evidence: Evidence) -> Iterator[Finding]:
    for event_id in sorted(evidence.stored.keys() - evidence.meant.keys()):
        yield Finding(Kind.ROLLED_BACK, event_id, "in the store, though nobody published it")
    seen = evidence.stored.keys() | {facts["event"] for facts in evidence.of("started")}
    for event_id in sorted(evidence.rolled_back & seen):
        yield Finding(Kind.ROLLED_BACK, event_id, "its transaction was rolled back")


def _broken(evidence: Evidence) -> Iterator[Finding]:
    for invariant, times in Counter(facts["invariant"] for facts in evidence.of("broken")).items():
        yield Finding(Kind.INVARIANT, invariant, f"seen {times} times")
    at_work = {entry.process for entry in evidence.history if entry.what == "ready"}
    for facts in evidence.of("exited"):
        gave_up = facts["code"] == 0 and not facts.get("asked", True) and facts["process"] in at_work
        if gave_up or facts["code"] not in _ENDED_AS_EXPECTED:
            yield Finding(Kind.PROCESS, facts["process"], f"ended by itself with code {facts['code']}")
    for facts in evidence.of("did_not_end"):
        yield Finding(Kind.PROCESS, facts["process"], "did not end when it was asked to")
