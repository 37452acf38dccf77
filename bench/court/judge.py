"""What a court has done, read from its store and from the stand-ins, and whether all of it happened exactly once."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec

from bench.court.house import House
from kingdom.bootstrap import open_bus, operations_of
from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordQuery
from kingdom.court.documents import Assignment, ExternalEvent
from kingdom.realm import Realm
from kingdom.roles import declared
from kingdom.workflow.records import ACCEPTED, each

_ENDED_RUNS = ("COMPLETED", "CANCELLED")


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """All that can be counted."""

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


def judge(books: Books, expected: int, processes: list[str]) -> list[str]:
    """Return everything that is not as it must be."""
    findings = []
    if len(books.events) != expected:
        findings.append(f"{len(books.events)} events were noticed, {expected} happened")
    for event in books.events:
        tasks = [route.task_id for route in event.routes if route.task_id]
        if event.status != "completed" or event.outcome != "completed":
            findings.append(f"{event.id} is {event.status}, {event.outcome}: {event.reason}")
        if len(tasks) != 1:
            findings.append(f"{event.id} has {len(tasks)} assignments")
    by_event = Counter(assignment.event_id for assignment in books.assignments)
    findings += [f"{event} has {count} assignments in the store" for event, count in by_event.items() if count != 1]
    findings += [
        f"pull request {number} has {books.comments.get(number, 0)} comments of ours"
        for number in range(1, expected + 1)
        if books.comments.get(number, 0) != 1
    ]
    findings += [f"message {message} was posted {n} times" for message, n in books.posts.items() if n != 1]
    findings += [f"message {message} was never posted" for message in books.messages if message not in books.posts]
    findings += [f"session {soldier} is still on the books" for soldier in books.sessions]
    findings += [f"quota {scope} is still held by {holders}" for scope, holders in books.held.items()]
    findings += [f"run {run} is still open" for run in books.open_runs]
    findings += [f"on the bus: {words}" for words in books.open_events]
    findings += [f"process {words} still runs" for words in processes]
    if books.accepted:
        findings.append(f"{books.accepted} commands are accepted and not answered")
    return findings


async def read_books(house: House) -> Books:
    """Read the store and the stand-ins."""
    application = declared(Realm())
    async with open_bus(house.url, application.topology, application.kinds, connections=2) as bus:
        async with bus.transaction() as transaction:
            events = [msgspec.convert(record.doc, ExternalEvent) for record in await _all(transaction, "event")]
            tasks = [msgspec.convert(record.doc, Assignment) for record in await _all(transaction, "task")]
            messages = [record.id for record in await _all(transaction, "message") if record.state == "sent"]
            sessions = await transaction.get("sessions", "sessions")
            accepted = await transaction.find(RecordQuery(kind="command", state=ACCEPTED))
            quotas = await _all(transaction, "quota")
            runs = [record.id for record in await _all(transaction, "workflow") if record.state not in _ENDED_RUNS]
        stats = await operations_of(bus).stats()
    return Books(
        events=events,
        assignments=tasks,
        comments=await _comments(house),
        posts=await _posts(house),
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
    return [record async for record in each(transaction, RecordQuery(kind=kind))]


async def _comments(house: House) -> dict[int, int]:
    """Count our comments by pull request, as the stand-in carried them out."""
    return dict(Counter(call["number"] for call in await house.calls("github", "POST issue comment")))


async def _posts(house: House) -> dict[str, int]:
    """Count what was posted to people by message."""
    posts = await house.calls("slack", "chat.postMessage")
    payloads = [((call.get("metadata") or {}).get("event_payload") or {}) for call in posts]
    return dict(Counter(str(payload.get("msg_id", "")) for payload in payloads))
