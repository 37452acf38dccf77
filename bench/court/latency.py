"""Measure each step from a webhook to an agent in an idle court, one event at a time."""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import aiohttp

from bench.court.court_processes import CHANNEL, ROLES, STANDINS, CourtProcesses, eventually
from bench.court.webhooks import Webhook, review_asked
from bench.files.figures import Figures
from kingdom.bootstrap import open_bus, operations_of
from kingdom.bus.log import LogCursor
from kingdom.bus.port import Bus
from kingdom.bus.record import RecordQuery
from kingdom.clock import utc_now
from kingdom.court.documents import Assignment, ExternalEvent
from kingdom.court.records import EVENTS, load
from kingdom.realm import Realm
from kingdom.roles import declare_application
from kingdom.workflow.records import COMMANDS, each_record

GENERAL = "gen-bench"
STARTED = "StartAgent accepted"
# The measured steps in their order.
STEPS = (
    "webhook answered",
    "event.dispatched",
    "PrepareResources accepted",
    "WorkTreeCreated",
    STARTED,
    "AgentStarted",
)
# The bound: the median time until the start of an agent is accepted, in milliseconds.
AT_MOST_MS: Mapping[str, float] = {"postgres": 300, "files": 700}
# The first event clones the repository, which happens only once.
_WARM_UPS = 2
_LOG_PAGE = 1000
# The default intervals of the periodic work: a webhook must not wait for any of it.
SETTINGS: Mapping[str, Any] = {
    "sentinel": {"github": {"poll_seconds": 60}, "jira": {"poll_seconds": 60}},
    "king": {"every_seconds": 10, "soldiers": 8, "soldiers_per_repo": 8, "reserved_usd": 0.01},
    "chamberlain": {"every_seconds": 10},
}


@dataclass(frozen=True, slots=True)
class SentWebhook:
    """A sent webhook with the times of its request and its answer."""

    event_id: str
    sent_at: datetime
    answered_at: datetime


async def measure_latency(court: CourtProcesses, figures: Figures, *, requests: int, at_most_ms: float | None) -> None:
    """Request one review after another, wait each time until the court is idle, and record the times."""
    async with aiohttp.ClientSession() as session, opened_store(court) as bus:
        asked = [await _send_and_wait(court, bus, session, number) for number in range(1, _WARM_UPS + requests + 1)]
        times = await _times(bus, asked[_WARM_UPS:])
    for step in STEPS:
        found = times[step]
        assert len(found) == requests, f"{step} was seen {len(found)} times, not {requests}: {court.log('general')}"
        bound = at_most_ms if step == STARTED else None
        figures.note(f"{step}, p50 ms", statistics.median(found), at_most=bound)
        figures.note(f"{step}, p95 ms", percentile(found, 0.95))
    figures.facts["latency, ms"] = {step: [round(each, 1) for each in times[step]] for step in STEPS}


async def begin(court: CourtProcesses, settings: Mapping[str, Any] = SETTINGS) -> None:
    """Write the settings and one General with trivial agents, and start all processes."""
    court.write_settings(settings)
    steps = [
        {"write": "result.json", "text": json.dumps({"status": "success", "summary": "looked"})},
        {"answer": "looked"},
    ]
    query = "Look.\n```script\n" + "\n".join(map(json.dumps, steps)) + "\n```\n"
    court.write_general(
        GENERAL,
        {"subscribes": [{"type": "github.pr.review_requested"}]},
        {"name": "Look", "gitRefs": ["event-repo"], "works": [{"name": "look", "tasks": [query]}]},
    )
    await court.start(*STANDINS)
    await court.people("slack", "channels", name=CHANNEL)
    await court.start(*ROLES)


@asynccontextmanager
async def opened_store(court: CourtProcesses) -> AsyncIterator[Bus]:
    """Open the store of a court for reading."""
    application = declare_application(Realm())
    async with open_bus(court.url, application.topology, application.kinds, connections=2) as bus:
        yield bus


def percentile(found: Sequence[float], share: float) -> float:
    """Return a percentile of the figures; `share` is between 0 and 1."""
    ordered = sorted(found)
    return ordered[math.ceil(len(ordered) * share) - 1]


async def _send_and_wait(court: CourtProcesses, bus: Bus, session: aiohttp.ClientSession, number: int) -> SentWebhook:
    webhook = review_asked(number)
    sent_at = utc_now()
    status, words = await webhook.send(session, court)
    answered_at = utc_now()
    assert (status, words) == (202, "received"), f"the receiver says {status}: {words}"
    await eventually(lambda: _is_over(bus, webhook), f"{webhook.event_id} ends")
    return SentWebhook(webhook.event_id, sent_at, answered_at)


async def _is_over(bus: Bus, webhook: Webhook) -> bool:
    """Return whether an event has ended and nothing of it is open."""
    async with bus.transaction() as transaction:
        record = await transaction.get(EVENTS.name, webhook.event_id)
    if record is None or record.state not in EVENTS.final:
        return False
    assert record.doc["outcome"] == "completed", record.doc
    return not any(stream.pending or stream.processing for stream in await operations_of(bus).stats())


async def _times(bus: Bus, asked: Sequence[SentWebhook]) -> Mapping[str, list[float]]:
    """Return for each step the milliseconds after each webhook, according to the store."""
    moments: dict[str, dict[str, datetime]] = defaultdict(dict)
    await _read_log(bus, moments)
    async with bus.transaction() as transaction:
        async for record in each_record(transaction, RecordQuery(kind=COMMANDS.name)):
            step = f"{record.doc['type']} accepted"
            moments[record.doc["workflowId"]].setdefault(step, datetime.fromisoformat(record.doc["acceptedAt"]))
        events = [(await load(transaction, ExternalEvent, request.event_id))[1] for request in asked]
        tasks = [(await load(transaction, Assignment, event.routes[0].assignment_id))[1] for event in events]
    times: dict[str, list[float]] = defaultdict(list)
    for request, task in zip(asked, tasks, strict=True):
        found = {STEPS[0]: request.answered_at} | moments[request.event_id] | moments[task.workflow_id]
        for step, at in found.items():
            times[step].append((at - request.sent_at).total_seconds() * 1000)
    return times


async def _read_log(bus: Bus, moments: Mapping[str, dict[str, datetime]]) -> None:
    cursor, operations = LogCursor(), operations_of(bus)
    while page := await operations.read_log(cursor, _LOG_PAGE):
        for logged in page:
            if logged.entry.type in STEPS:
                moments[logged.entry.aggregate_id].setdefault(logged.entry.type, logged.entry.at)
        cursor = page[-1].cursor
