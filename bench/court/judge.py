"""Read from the store and the stand-ins what a court has done, and check that everything happened exactly once."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec

from bench.court.court_processes import CourtProcesses
from kingdom.bootstrap import open_bus, operations_of
from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordQuery
from kingdom.court.documents import Assignment, ExternalEvent
from kingdom.realm import Realm
from kingdom.roles import declare_application
from kingdom.workflow.records import ACCEPTED, each_record

_ENDED_RUNS = ("COMPLETED", "CANCELLED")


@dataclass(frozen=True, slots=True, kw_only=True)
class CourtCounts:
    """The results of a court. `comments` are counted per pull request and `posts` per message; `messages` are ids.

    The last fields must be empty at the end: registered agent `sessions`, commands that a host has `accepted` but not
    answered, the holders of each `held` quota, open runs, and open events of the bus.
    """

    events: list[ExternalEvent]
    assignments: list[Assignment]
    comments: dict[int, int]
    posts: dict[str, int]
    messages: list[str]
    sessions: list[str]
    accepted: int
    held: dict[str, Any]
    open_runs: list[str]
    open_events: list[str]

    @property
    def ended(self) -> int:
        """Return how many events have ended."""
        return sum(event.status in ("completed", "failed") for event in self.events)

    def to_json(self) -> dict[str, Any]:
        """Return the counts."""
        return {
            "outcomes": dict(Counter(str(event.outcome) for event in self.events)),
            "assignments": len(self.assignments),
            "comments": sum(self.comments.values()),
            "messages_sent": len(self.messages),
            "posts": sum(self.posts.values()),
        }


def judge(counts: CourtCounts, expected: int, processes: list[str]) -> list[str]:
    """Describe everything that is wrong."""
    findings = []
    if len(counts.events) != expected:
        findings.append(f"{len(counts.events)} events were noticed, {expected} happened")
    for event in counts.events:
        tasks = [route.assignment_id for route in event.routes if route.assignment_id]
        if event.status != "completed" or event.outcome != "completed":
            findings.append(f"{event.id} is {event.status}, {event.outcome}: {event.reason}")
        if len(tasks) != 1:
            findings.append(f"{event.id} has {len(tasks)} assignments")
    by_event = Counter(assignment.event_id for assignment in counts.assignments)
    findings += [f"{event} has {count} assignments in the store" for event, count in by_event.items() if count != 1]
    findings += [
        f"pull request {number} has {counts.comments.get(number, 0)} comments of ours"
        for number in range(1, expected + 1)
        if counts.comments.get(number, 0) != 1
    ]
    return [*findings, *judge_leftovers(counts, processes)]


def judge_leftovers(counts: CourtCounts, processes: list[str]) -> list[str]:
    """Describe what is left at the end, and messages that were not posted exactly once."""
    findings = [f"message {message} was posted {n} times" for message, n in counts.posts.items() if n != 1]
    findings += [f"message {message} was never posted" for message in counts.messages if message not in counts.posts]
    findings += [f"session {soldier} is still registered" for soldier in counts.sessions]
    findings += [f"quota {scope} is still held by {holders}" for scope, holders in counts.held.items()]
    findings += [f"run {run} is still open" for run in counts.open_runs]
    findings += [f"on the bus: {words}" for words in counts.open_events]
    findings += [f"process {words} still runs" for words in processes]
    if counts.accepted:
        findings.append(f"{counts.accepted} commands are accepted and not answered")
    return findings


async def read_counts(court: CourtProcesses) -> CourtCounts:
    """Read the store and the stand-ins."""
    application = declare_application(Realm())
    async with open_bus(court.url, application.topology, application.kinds, connections=2) as bus:
        async with bus.transaction() as transaction:
            events = [msgspec.convert(record.doc, ExternalEvent) for record in await _all(transaction, "event")]
            tasks = [msgspec.convert(record.doc, Assignment) for record in await _all(transaction, "task")]
            messages = [record.id for record in await _all(transaction, "message") if record.state == "sent"]
            sessions = await transaction.get("sessions", "sessions")
            accepted = await transaction.find(RecordQuery(kind="command", state=ACCEPTED))
            quotas = await _all(transaction, "quota")
            runs = [record.id for record in await _all(transaction, "workflow") if record.state not in _ENDED_RUNS]
        stats = await operations_of(bus).stats()
    return CourtCounts(
        events=events,
        assignments=tasks,
        comments=await _comments(court),
        posts=await _posts(court),
        messages=messages,
        sessions=sorted(sessions.doc) if sessions else [],
        accepted=len(accepted),
        held={record.id: record.doc["holders"] for record in quotas if record.doc.get("holders")},
        open_runs=runs,
        open_events=[
            f"{stream.stream}: {stream.pending} pending, {stream.processing} processing, {stream.dead} dead"
            for stream in stats
            if stream.pending or stream.processing or stream.dead
        ],
    )


async def _all(transaction: Transaction, kind: str) -> list[Record]:
    return [record async for record in each_record(transaction, RecordQuery(kind=kind))]


async def _comments(court: CourtProcesses) -> dict[int, int]:
    """Count the executed comments by pull request."""
    return dict(Counter(call["number"] for call in await court.calls("github", "POST issue comment")))


async def _posts(court: CourtProcesses) -> dict[str, int]:
    """Count the posts to people by message."""
    posts = await court.calls("slack", "chat.postMessage")
    payloads = [((call.get("metadata") or {}).get("event_payload") or {}) for call in posts]
    return dict(Counter(str(payload.get("msg_id", "")) for payload in payloads))
