"""Everything that is known after a trial, and the views of it that several checks share."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from kingdom.bus.stream import Stream
from kingdom.trial_store import StoredEvent
from kingdom.verify.history import HistoryEntry

SECOND_NS = 1_000_000_000
# An event in one stream: what goes to several streams has a copy in each.
CopyId = tuple[str, str]
Facts = Mapping[str, Any]
_ENDS = {"done": "DONE", "doomed": "DEAD", "poison": "DEAD"}
# What an operator asked for, and the word that says that it was done.
_ANSWERS = {"discarding": "discarded", "redriving": "redriven", "cancelling": "cancelled"}


class Claim(NamedTuple):
    """One event in the hands of one process; `asked` and `at` are before and after the store gave it."""

    stream: str
    position: int
    event: str
    token: int
    process: str
    asked: int
    at: int
    is_first: bool


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a trial leaves behind; `applied` are the log's traces in the order of their transactions.

    `read` is what a reader of the log got, `records` those that a retention may remove once they are over.
    """

    streams: Mapping[str, Stream] = field(default_factory=dict)
    history: Sequence[HistoryEntry] = ()
    events: Sequence[StoredEvent] = ()
    applied: Sequence[Facts] = ()
    read: Sequence[Facts] | None = None
    tallies: Mapping[str, int] = field(default_factory=dict)
    records: Mapping[str, str] = field(default_factory=dict)

    def entries(self, *names: str) -> Iterator[HistoryEntry]:
        """Return every action of these names, in the order of time."""
        return (entry for entry in self.history if entry.what in names)

    def of(self, what: str) -> Iterator[Facts]:
        """Return the facts of every action of a name, in the order of time."""
        return (entry.facts for entry in self.entries(what))

    @cached_property
    def stored(self) -> dict[CopyId, StoredEvent]:
        """Return the stored events by stream and id."""
        return {(event.stream, event.event_id): event for event in self.events}

    @cached_property
    def meant(self) -> dict[str, Facts]:
        """Return the description of every event that somebody meant to publish."""
        sources = (*self.of("publishing"), *({"events": facts.get("follow_ups", ())} for facts in self.applied))
        return {described["event"]: described for facts in sources for described in facts["events"]}

    @cached_property
    def committed(self) -> set[str]:
        """Return the events whose publishing was confirmed, follow-ups of applied reactions among them."""
        confirmed = {event for facts in self.of("published") for event in facts["events"]}
        return confirmed | {d["event"] for facts in self.applied for d in facts.get("follow_ups", ())}

    @cached_property
    def seen(self) -> set[str]:
        """Return the events that are or were in the store, by its own word or by that of a worker."""
        stored = {event.event_id for event in self.events}
        return stored | {claim.event for claim in self.claims} | {facts["event"] for facts in self.of("started")}

    @cached_property
    def accepted(self) -> dict[str, list[Facts]]:
        """Return what the target did, by key of the call."""
        calls: dict[str, list[Facts]] = defaultdict(list)
        for facts in self.of("accepted"):
            calls[facts["key"]].append(facts)
        return calls

    @cached_property
    def claims(self) -> list[Claim]:
        """Return every event that a worker was given, in the order of time."""
        found = []
        for entry in self.entries("claimed"):
            stream, keys = entry.facts["stream"], set()
            for position, event, *_ in entry.facts["events"]:
                line = self.line(stream, event)
                first, asked = line not in keys, entry.facts.get("asked", entry.at)
                found.append(
                    Claim(stream, position, event, entry.facts["token"], entry.process, asked, entry.at, first)
                )
                keys.add(line)
        return found

    @cached_property
    def claims_of(self) -> dict[int, list[Claim]]:
        """Return the claims of each position by the age of their tokens."""
        found: dict[int, list[Claim]] = defaultdict(list)
        for claim in self.claims:
            found[claim.position].append(claim)
        return {position: sorted(claims, key=lambda claim: claim.token) for position, claims in found.items()}

    @cached_property
    def settling_began(self) -> dict[tuple[int, int], int]:
        """Return when somebody first began to settle a position under a token, with or without success."""
        began: dict[tuple[int, int], int] = {}
        for entry in self.entries("settled", "settle_unknown"):
            for position in entry.facts["outcomes"]:
                began.setdefault((int(position), entry.facts["token"]), entry.facts["began"])
        return began

    @cached_property
    def first_redriven(self) -> dict[str, int]:
        """Return when an operator first asked for another round of an event."""
        redriven: dict[str, int] = {}
        for entry in self.entries("redriving"):
            redriven.setdefault(entry.facts["event"], entry.at)
        return redriven

    @cached_property
    def last_signs(self) -> dict[str, int]:
        """Return when each process last did something."""
        return {entry.process: entry.at for entry in self.history}

    @cached_property
    def _kept(self) -> dict[int, list[int]]:
        kept: dict[int, list[int]] = defaultdict(list)
        for claim in self.claims:
            kept[claim.token].append(claim.asked)
        for facts in self.of("renewed"):
            for token in facts["tokens"]:
                kept[token].append(facts["asked"])
        return kept

    def is_kept(self, stream: str, token: int, at: int) -> bool:
        """Tell whether a lease could not be over yet: it was given or renewed less than its length before.

        It counts from the moment of asking, so that no delay of the machine makes this wrong.
        """
        return any(asked <= at < asked + self.lease_ns(stream) for asked in self._kept.get(token, ()))

    def expected(self, event_id: str) -> str | None:
        """Return how an event must end, or None where that is open; an operator has the last word."""
        asked, answered = self._asked.get(event_id), self._answered.get(event_id)
        if asked is None:
            return _ENDS.get(self.meant[event_id]["fate"])
        if answered is None or answered[0] != _ANSWERS[asked[0]]:
            return None
        match answered:
            case "discarded", _:
                return "DISCARDED"
            case "redriven", facts:
                return "DONE" if facts["mended"] else "DEAD"
            case "cancelled", facts if facts["answer"] == "cancelled":
                return "DEAD"
        return None

    def healthy(self, event_id: str) -> bool:
        """Tell whether an event must end as done."""
        return event_id in self.meant and self.expected(event_id) == "DONE"

    @cached_property
    def _asked(self) -> dict[str, tuple[str, Facts]]:
        return {entry.facts["event"]: (entry.what, entry.facts) for entry in self.entries(*_ANSWERS)}

    @cached_property
    def _answered(self) -> dict[str, tuple[str, Facts]]:
        return {entry.facts["event"]: (entry.what, entry.facts) for entry in self.entries(*_ANSWERS.values())}

    def line(self, stream: str, event_id: str) -> tuple[str, str]:
        """Return what an event must stay in order with: its key in an ordered stream, else only itself."""
        declared, stored = self.streams.get(stream), self.stored.get((stream, event_id))
        key = stored.partition_key if stored else self.meant.get(event_id, {}).get("key")
        return (stream, key) if declared and declared.ordered and key else (stream, event_id)

    def lease_ns(self, stream: str) -> int:
        """Return the length of a stream's leases."""
        return int(self.streams[stream].lease.total_seconds() * SECOND_NS)
