"""Check that all events of a transaction arrive or none, and that every reaction takes effect once."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from kingdom.verify.evidence import SECOND_NS, CopyId, Evidence
from kingdom.verify.health import MachineHealth
from kingdom.verify.violation import Violation, ViolationKind

# The clocks of the store and of the machine may drift apart by this much.
_CLOCK_DRIFT_NS = SECOND_NS // 20


def lost_events(evidence: Evidence) -> Iterator[Violation]:
    """Find published events that are not in the store, and DONE events that no handler has handled.

    Also find records that count fewer reactions than were applied.
    """
    traced = {(facts["stream"], facts["event"]) for facts in evidence.applied}
    for event_id in sorted(evidence.committed):
        for stream in evidence.described[event_id]["streams"]:
            stored = evidence.stored.get((stream, event_id))
            if stored is None:
                yield Violation(ViolationKind.LOST, event_id, f"published and committed, but nowhere in {stream}")
            elif stored.status == "DONE" and evidence.must_be_done(event_id):
                call = evidence.described[event_id]["call"]
                if call and call not in evidence.accepted:
                    yield Violation(ViolationKind.LOST, event_id, f"done, but its call {call} never arrived")
                elif not call and (stream, event_id) not in traced:
                    yield Violation(ViolationKind.LOST, event_id, f"done in {stream}, but its reaction left no trace")
    for record_id, applied, count in _counter_records(evidence):
        if count < applied:
            yield Violation(ViolationKind.LOST, record_id, f"the record counts {count} of {applied} applied reactions")


def torn_transactions(evidence: Evidence) -> Iterator[Violation]:
    """Find transactions of which only a part arrived."""
    batches = [
        *evidence.facts_of("publishing"),
        *({"events": facts.get("follow_ups", ())} for facts in evidence.applied),
    ]
    for facts in batches:
        events = [described["event"] for described in facts["events"]]
        there = [event for event in events if event in evidence.seen]
        if 0 < len(there) < len(events):
            yield Violation(
                ViolationKind.TORN, events[0], f"{len(there)} of the {len(events)} events of its transaction are there"
            )


def delivered_after_rollback(evidence: Evidence) -> Iterator[Violation]:
    """Find events that are in the store although they were not published or their transaction was rolled back."""
    rolled_back = {event for facts in evidence.facts_of("rolled_back") for event in facts["events"]}
    for event_id in sorted({event.event_id for event in evidence.events} - evidence.described.keys()):
        yield Violation(ViolationKind.ROLLED_BACK, event_id, "in the store, but not published")
    for event_id in sorted(rolled_back & evidence.seen):
        yield Violation(ViolationKind.ROLLED_BACK, event_id, "its transaction was rolled back")


def repeated_reactions(evidence: Evidence) -> Iterator[Violation]:
    """Find reactions that took effect more than once."""
    applied = Counter((facts["stream"], facts["event"]) for facts in evidence.applied)
    for copy, times in applied.items():
        if times > 1:
            tokens = [facts["token"] for facts in evidence.applied if (facts["stream"], facts["event"]) == copy]
            yield Violation(
                ViolationKind.TWICE, copy[1], f"applied {times} times in {copy[0]}, under the tokens {tokens}"
            )
    for record_id, logged, count in _counter_records(evidence):
        if count > logged:
            yield Violation(
                ViolationKind.TWICE, record_id, f"the record counts {count}, the log has {logged} applied reactions"
            )
    refused = {(facts["stream"], facts["event"]) for facts in evidence.facts_of("once_refused")}
    for _, event_id in sorted(refused & applied.keys()):
        yield Violation(ViolationKind.TWICE, event_id, "applied, although an earlier reaction had its dedup key")


def duplicate_ids(evidence: Evidence) -> Iterator[Violation]:
    """Find events that a stream has or accepted twice, and positions that two events have."""
    places: dict[CopyId, set[int]] = defaultdict(set)
    owners: dict[int, set[CopyId]] = defaultdict(set)
    stored = [(event.stream, event.event_id, event.position) for event in evidence.events]
    for stream, event, position in (*stored, *((c.stream, c.event, c.position) for c in evidence.claims)):
        places[stream, event].add(position)
        owners[position].add((stream, event))
    times = Counter((stream, event) for stream, event, _ in stored)
    for (stream, event), positions in places.items():
        if len(positions) > 1 or times[stream, event] > 1:
            yield Violation(ViolationKind.DOUBLED, event, f"in {stream} more than once, at {sorted(positions)}")
    for facts in evidence.facts_of("published"):
        duplicates = {(stream, event) for stream, event in facts.get("duplicates", ())}
        for event in facts.get("again", ()):
            for stream in evidence.described[event]["streams"]:
                if (stream, event) not in duplicates:
                    yield Violation(ViolationKind.DOUBLED, event, f"published again, and {stream} accepted it as new")
    for position, copies in owners.items():
        if len(copies) > 1:
            yield Violation(
                ViolationKind.DOUBLED, str(position), f"the position of {len(copies)} events: {sorted(copies)}"
            )


def early_deliveries(evidence: Evidence) -> Iterator[Violation]:
    """Find delayed events that were claimed before they were due by the clock of the store."""
    health = MachineHealth(evidence)
    for clock in evidence.facts_of("clock"):
        for claim in evidence.claims:
            due = evidence.described.get(claim.event, {}).get("due")
            if due is None or health.clock_was_wrong(claim.asked, claim.at):
                continue
            too_early = clock["asked"] + int((due - clock["store"]) * SECOND_NS) - claim.at
            if too_early > _CLOCK_DRIFT_NS:
                yield Violation(
                    ViolationKind.EARLY, claim.event, f"claimed {too_early / SECOND_NS:.2f} s before it was due"
                )


def keys_without_one_winner(evidence: Evidence) -> Iterator[Violation]:
    """Find contested dedup keys that were not won by exactly one reaction."""
    winners: dict[str, list[str]] = defaultdict(list)
    for facts in evidence.applied:
        if "contest" in facts:
            winners[facts["contest"]] += [facts["event"]] if facts["won"] else []
    for contest, events in winners.items():
        if len(events) != 1:
            yield Violation(
                ViolationKind.CONTEST, contest, f"won {len(events)} times: {', '.join(events) or 'by none'}"
            )


def _counter_records(evidence: Evidence) -> Iterator[tuple[str, int, int]]:
    """Yield the id of each record in which reactions count themselves, their number in the log, and the stored count.

    The log calls the id of this record `tally`.
    """
    applied = Counter(facts["tally"] for facts in evidence.applied if "tally" in facts)
    for record_id in sorted(applied.keys() | evidence.counts_by_record.keys()):
        yield record_id, applied[record_id], evidence.counts_by_record.get(record_id, 0)
