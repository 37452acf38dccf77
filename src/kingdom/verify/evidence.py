"""The evidence of a trial, prepared for the checks."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from kingdom.bus.stream import Stream
from kingdom.trial_store import StoredEvent
from kingdom.verify.history import HistoryEntry

SECOND_NS = 1_000_000_000
# The stream and the event id of one copy of an event.
CopyId = tuple[str, str]
Facts = Mapping[str, Any]
# The status in which an event of each fate must end.
_ENDS = {"done": "DONE", "doomed": "DEAD", "poison": "DEAD"}
# The history entry of each request of the operator, and the entry that confirms the request.
_CONFIRMED_BY = {"discarding": "discarded", "redriving": "redriven", "cancelling": "cancelled"}


class Claim(NamedTuple):
    """One event that a process claimed. The store granted the claim between the times `asked` and `at`.

    `is_first` tells whether the event is the first one of its key in this claim.
    """

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
    """The results of a trial. `applied` has the log entries of the handlers in transaction order.

    `read` has the entries that a reader of the log got. Each reaction adds one to the count in a record, and
    `counts_by_record` has these counts. `records` has the states of the records that the retention may remove.
    """

    streams: Mapping[str, Stream] = field(default_factory=dict)
    history: Sequence[HistoryEntry] = ()
    events: Sequence[StoredEvent] = ()
    applied: Sequence[Facts] = ()
    read: Sequence[Facts] | None = None
    counts_by_record: Mapping[str, int] = field(default_factory=dict)
    records: Mapping[str, str] = field(default_factory=dict)

    def entries(self, *names: str) -> Iterator[HistoryEntry]:
        """Return the history entries with these names, in the order of time."""
        return (entry for entry in self.history if entry.what in names)

    def facts_of(self, what: str) -> Iterator[Facts]:
        """Return the facts of the history entries with this name, in the order of time."""
        return (entry.facts for entry in self.entries(what))

    @cached_property
    def stored(self) -> dict[CopyId, StoredEvent]:
        """Return the stored events by stream and id."""
        return {(event.stream, event.event_id): event for event in self.events}

    @cached_property
    def described(self) -> dict[str, Facts]:
        """Return the description of every event that a process tried to publish."""
        sources = (*self.facts_of("publishing"), *({"events": facts.get("follow_ups", ())} for facts in self.applied))
        return {each["event"]: each for facts in sources for each in facts["events"]}

    @cached_property
    def committed(self) -> set[str]:
        """Return the events that were certainly published, including the follow-ups of applied reactions."""
        confirmed = {event for facts in self.facts_of("published") for event in facts["events"]}
        return confirmed | {d["event"] for facts in self.applied for d in facts.get("follow_ups", ())}

    @cached_property
    def seen(self) -> set[str]:
        """Return the events that are or were in the store, according to the store or a worker."""
        stored = {event.event_id for event in self.events}
        return stored | {claim.event for claim in self.claims} | {facts["event"] for facts in self.facts_of("started")}

    @cached_property
    def accepted(self) -> dict[str, list[Facts]]:
        """Return the calls that the target executed, by key."""
        calls: dict[str, list[Facts]] = defaultdict(list)
        for facts in self.facts_of("accepted"):
            calls[facts["key"]].append(facts)
        return calls

    @cached_property
    def claims(self) -> list[Claim]:
        """Return every claim of an event by a worker, in the order of time."""
        found = []
        for entry in self.entries("claimed"):
            stream, keys = entry.facts["stream"], set()
            for position, event, *_ in entry.facts["events"]:
                key = self.ordering_key(stream, event)
                first, asked = key not in keys, entry.facts.get("asked", entry.at)
                found.append(
                    Claim(stream, position, event, entry.facts["token"], entry.process, asked, entry.at, first)
                )
                keys.add(key)
        return found

    @cached_property
    def claims_of(self) -> dict[int, list[Claim]]:
        """Return the claims of each position, ordered by token."""
        found: dict[int, list[Claim]] = defaultdict(list)
        for claim in self.claims:
            found[claim.position].append(claim)
        return {position: sorted(claims, key=lambda claim: claim.token) for position, claims in found.items()}

    @cached_property
    def settling_began(self) -> dict[tuple[int, int], int]:
        """Return the time at which a worker first tried to settle each event, by position and token.

        Attempts that certainly failed are left out. If a later attempt failed, an earlier attempt whose answer was lost
        still counts, because it may have succeeded.
        """
        attempts: dict[tuple[int, int], set[int]] = defaultdict(set)
        for entry in self.entries("settling", "settled", "not_settled"):
            for position in entry.facts["outcomes"]:
                began = attempts[int(position), entry.facts["token"]]
                (began.discard if entry.what == "not_settled" else began.add)(entry.facts["began"])
        return {key: min(began) for key, began in attempts.items() if began}

    @cached_property
    def first_redriven(self) -> dict[str, int]:
        """Return the time at which the operator first redrove each event."""
        redriven: dict[str, int] = {}
        for entry in self.entries("redriving"):
            redriven.setdefault(entry.facts["event"], entry.at)
        return redriven

    @cached_property
    def last_seen(self) -> dict[str, int]:
        """Return the time of the last history entry of each process."""
        return {entry.process: entry.at for entry in self.history}

    @cached_property
    def _renewals(self) -> dict[int, list[int]]:
        renewals: dict[int, list[int]] = defaultdict(list)
        for claim in self.claims:
            renewals[claim.token].append(claim.asked)
        for facts in self.facts_of("renewed"):
            for token in facts["tokens"]:
                renewals[token].append(facts["asked"])
        return renewals

    @cached_property
    def _tokens_in_transport(self) -> set[int]:
        return {facts["token"] for facts in self.facts_of("claimed") if facts.get("in_transport")}

    def lease_is_valid(self, stream: str, token: int, at: int) -> bool:
        """Return whether a lease was certainly valid at a time.

        The lease counts from the request for it or for its renewal. The store grants the request later, so the lease
        is never taken as valid for too long, even on a slow machine. An event from a topic has no lease: it belongs to
        the owner of its partition, which the brokers can change at any time.
        """
        if token in self._tokens_in_transport:
            return False
        return any(asked <= at < asked + self.lease_ns(stream) for asked in self._renewals.get(token, ()))

    def is_takeover(self, claim: Claim, process: str) -> bool:
        """Return whether a claim proves that `process` did not own the event any more.

        A claim from a topic proves nothing by itself: the same process may claim the event again, or another process
        may claim it just before it loses the partition. The store refuses such an event before its handler starts, so
        only a handler that another process has started is a proof.
        """
        if claim.token not in self._tokens_in_transport:
            return True
        return claim.process != process and (claim.token, claim.event) in self._started

    @cached_property
    def _started(self) -> set[tuple[int, str]]:
        return {(facts["token"], facts["event"]) for facts in self.facts_of("started")}

    def expected(self, event_id: str) -> str | None:
        """Return the status in which an event must end, or None if several statuses are allowed.

        The requests of the operator can change this status.
        """
        request, confirmation = self._requests.get(event_id), self._confirmations.get(event_id)
        if request is None:
            return _ENDS.get(self.described[event_id]["fate"])
        if confirmation is None or confirmation[0] != _CONFIRMED_BY[request[0]]:
            return None
        match confirmation:
            case "discarded", _:
                return "DISCARDED"
            case "redriven", facts:
                return "DONE" if facts["mended"] else "DEAD"
            case "cancelled", facts if facts["answer"] == "cancelled":
                return "DEAD"
        return None

    def must_be_done(self, event_id: str) -> bool:
        """Return whether an event must end DONE."""
        return event_id in self.described and self.expected(event_id) == "DONE"

    @cached_property
    def _requests(self) -> dict[str, tuple[str, Facts]]:
        return {entry.facts["event"]: (entry.what, entry.facts) for entry in self.entries(*_CONFIRMED_BY)}

    @cached_property
    def _confirmations(self) -> dict[str, tuple[str, Facts]]:
        return {entry.facts["event"]: (entry.what, entry.facts) for entry in self.entries(*_CONFIRMED_BY.values())}

    def ordering_key(self, stream: str, event_id: str) -> tuple[str, str]:
        """Return the stream and the key within which an event is ordered. The key of an unordered event is its id."""
        declared, stored = self.streams.get(stream), self.stored.get((stream, event_id))
        key = stored.partition_key if stored else self.described.get(event_id, {}).get("key")
        return (stream, key) if declared and declared.ordered and key else (stream, event_id)

    def lease_ns(self, stream: str) -> int:
        """Return the duration of a stream's leases in nanoseconds."""
        return int(self.streams[stream].lease.total_seconds() * SECOND_NS)
