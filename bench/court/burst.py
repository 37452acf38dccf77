"""Send many webhooks at once, and then all of them again: each must be answered, stored once and routed."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import psutil

from bench.court.court_processes import CourtProcesses, eventually
from bench.court.latency import SETTINGS, opened_store, percentile
from bench.court.webhooks import Webhook, review_asked
from bench.files.figures import Figures
from kingdom.bootstrap import operations_of
from kingdom.bus.log import LogCursor
from kingdom.bus.port import Bus
from kingdom.bus.record import RecordQuery
from kingdom.chronicle.events import EventDetected
from kingdom.court.documents import ExternalEvent
from kingdom.court.king.waiting_queue import WAITING, WAITING_ENTRIES
from kingdom.court.quota import QUOTAS, SOLDIERS
from kingdom.court.records import EVENTS
from kingdom.court.streams import EVENT_STREAM
from kingdom.workflow.records import each_record

_AT_ONCE = 50
# Higher than every pull request number of the latency measurement.
_FIRST_NUMBER = 1001
_PATIENCE_SECONDS = 300.0
_LOG_PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstCounts:
    """The content of the store after a burst: its events, and the ids of waiting events.

    `noticed` counts the log entries about each event, `holders` the assignments that hold a slot.
    """

    events: Sequence[ExternalEvent]
    noticed: Counter[str]
    waiting: frozenset[str]
    holders: int


async def measure_burst(court: CourtProcesses, figures: Figures, *, count: int) -> None:
    """Send all webhooks twice, and check that each is stored once and decided by the King."""
    webhooks = [review_asked(number) for number in range(_FIRST_NUMBER, _FIRST_NUMBER + count)]
    refused = 0
    async with opened_store(court) as bus:
        for words, expected in (("burst", "received"), ("the same burst again", "seen")):
            started, before = time.monotonic(), _processor_seconds(court)
            answers = await _send_all(court, webhooks)
            figures.note(f"{words}, seconds", time.monotonic() - started)
            figures.note(f"{words}, webhooks a second", count / (time.monotonic() - started))
            figures.note(f"{words}, answer p95 ms", percentile([ms for _, _, ms in answers], 0.95))
            counted = Counter(f"{status} {words}" for status, words, _ in answers)
            figures.facts[f"answers to {words}"] = dict(counted)
            refused += count - counted[f"202 {expected}"]
            if expected == "received":
                await eventually(lambda: _is_decided(bus), "the King decides about all", _PATIENCE_SECONDS)
                figures.note("burst, seconds until all are routed", time.monotonic() - started)
                for role, seconds in _processor_seconds(court).items():
                    figures.note(
                        f"burst, processor ms of the {role} per event", (seconds - before[role]) * 1000 / count
                    )
        await eventually(lambda: _is_decided(bus), "the King decides about all", _PATIENCE_SECONDS)
        counts = await _read(bus, {webhook.event_id for webhook in webhooks})
    figures.note("webhooks of both bursts without the expected answer 202", refused, at_most=0)
    findings = list(judge(counts, [webhook.event_id for webhook in webhooks], SETTINGS["king"]["soldiers"]))
    figures.facts["findings of the burst"] = findings[:20]
    figures.note("events of the burst lost, doubled or not routed", len(findings), at_most=0)


def judge(counts: BurstCounts, expected: Sequence[str], slots: int) -> Iterator[str]:
    """Describe everything that is wrong."""
    stored = {event.id for event in counts.events}
    yield from (f"{event_id} is lost" for event_id in expected if event_id not in stored)
    for event in counts.events:
        if counts.noticed[event.id] != 1:
            yield f"{event.id} was noticed {counts.noticed[event.id]} times"
        if len(event.routes) != 1:
            yield f"{event.id} is {event.status} with {len(event.routes)} routes"
        elif not event.routes[0].assignment_id and event.routes[0].waiting not in counts.waiting:
            yield f"{event.id} is {event.status}, but neither waits nor is assigned"
    if not 0 <= counts.holders <= slots:
        yield f"{counts.holders} assignments hold one of {slots} slots"


async def _send_all(court: CourtProcesses, webhooks: Sequence[Webhook]) -> list[tuple[int, str, float]]:
    """Send as fast as possible, and return the status, the text and the milliseconds of each answer."""
    room = asyncio.Semaphore(_AT_ONCE)
    connector = aiohttp.TCPConnector(limit=_AT_ONCE)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def send(webhook: Webhook) -> tuple[int, str, float]:
            async with room:
                started = time.monotonic()
                status, words = await webhook.send(session, court)
                return status, words, (time.monotonic() - started) * 1000

        return await asyncio.gather(*map(send, webhooks))


def _processor_seconds(court: CourtProcesses) -> dict[str, float]:
    """Return the processor time of the processes that limit the rate."""
    used = {role: psutil.Process(court.pid(role)).cpu_times() for role in ("sentinel", "king")}
    return {role: times.user + times.system for role, times in used.items()}


async def _is_decided(bus: Bus) -> bool:
    """Return whether the King has handled everything."""
    stats: Any = await operations_of(bus).stats()
    return not any(each.pending or each.processing for each in stats if each.stream == EVENT_STREAM.name)


async def _read(bus: Bus, expected: set[str]) -> BurstCounts:
    async with bus.transaction() as transaction:
        # Read the entries before the events, because the court still admits events: an entry that ends after this read
        # has an assignment when its event is read.
        waiting = [
            record.id
            async for record in each_record(transaction, RecordQuery(kind=WAITING_ENTRIES.name, state=WAITING))
        ]
        events = [
            record async for record in each_record(transaction, RecordQuery(kind=EVENTS.name)) if record.id in expected
        ]
        soldiers = await transaction.get(QUOTAS.name, SOLDIERS)
    noticed: Counter[str] = Counter()
    cursor, operations = LogCursor(), operations_of(bus)
    while page := await operations.read_log(cursor, _LOG_PAGE):
        event_ids = [logged.entry.data["event_id"] for logged in page if logged.entry.type == EventDetected.type]
        noticed.update(event_id for event_id in event_ids if event_id in expected)
        cursor = page[-1].cursor
    return BurstCounts(
        events=[msgspec.convert(record.doc, ExternalEvent) for record in events],
        noticed=noticed,
        waiting=frozenset(waiting),
        holders=len(soldiers.doc.get("holders", {})) if soldiers else 0,
    )
