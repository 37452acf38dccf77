"""Waits for the end of an event, and prints what delays it."""

import asyncio
import re
import time
from dataclasses import dataclass

from kingdom.bootstrap import operations_of
from kingdom.bus.port import Bus, Transaction
from kingdom.cli.framework.output import CommandOutput
from kingdom.clock import utc_now
from kingdom.court.documents import EventStatus, ExternalEvent
from kingdom.court.envoy.answers import open_questions
from kingdom.court.king.why import ADMITTED, EventExplanation, explain_event
from kingdom.court.questions import HumanQuestion
from kingdom.court.records import EVENTS, load
from kingdom.court.status import CourtStatus, StatusSources, read_status
from kingdom.workflow.model.resources.host import HostStatus

# How often the event is read, and how often the reason for its delay is looked up.
_POLL_SECONDS = 0.2
_EXPLAIN_SECONDS = 1.0
# Shorter delays are not reported, because roles take a moment to start.
PATIENCE_SECONDS = 3.0
# The same delay is reported again after this time, as a sign of life.
_REPEAT_SECONDS = 60.0
_NUMBERS = re.compile(r"[\d.]+")
_RUN_ALL = "run `kingdom up`"


@dataclass(frozen=True, slots=True)
class EventEnd:
    """The state of an event after waiting for it: it has ended, or `ask` is a question for a person."""

    event: ExternalEvent
    ask: HumanQuestion | None = None


async def wait_for(
    output: CommandOutput,
    bus: Bus,
    event_id: str,
    sources: StatusSources,
    patience_seconds: float = PATIENCE_SECONDS,
    again_seconds: float = _REPEAT_SECONDS,
) -> EventEnd:
    """Wait without a limit until an event ends or a person is asked; print notes about delays."""
    delays = _DelayReporter(output, event_id, patience_seconds, again_seconds)
    explained_at = time.monotonic()
    while True:
        async with bus.transaction() as transaction:
            _, event = await load(transaction, ExternalEvent, event_id)
            if event.status in EVENTS.final:
                return EventEnd(event)
            if ask := await _find_question(transaction, event):
                return EventEnd(event, ask)
        if time.monotonic() - explained_at >= min(_EXPLAIN_SECONDS, patience_seconds):
            explained_at = time.monotonic()
            court_status = await read_status(bus, operations_of(bus), sources)
            async with bus.transaction() as transaction:
                explanation = await explain_event(transaction, event_id, utc_now(), sources.king)
            delays.update(find_delay(explanation, court_status))
        await asyncio.sleep(_POLL_SECONDS)


def find_delay(explanation: EventExplanation, court_status: CourtStatus) -> str:
    """Return what an open event waits for, or an empty text if it makes progress."""
    event = explanation.event
    well = {each.role for each in court_status.roles if each.is_well}
    if not well:
        return f"no role is running, {_RUN_ALL}"
    needed = "king" if event.status is EventStatus.PENDING else "general"
    if needed not in well:
        return f"the role {needed} is not running: `kingdom role {needed}`, or {_RUN_ALL}"
    if event.status is EventStatus.PENDING:
        held = [
            f"{wait.general}: {wait.held_by}" if len(explanation.waits) > 1 else wait.held_by
            for wait in explanation.waits
            if wait.held_by != ADMITTED
        ]
        return "; ".join(held) if explanation.waits else "the King has not routed it yet"
    runs = {given.workflow_id for given in explanation.assignments}
    if parked := [each for each in court_status.parked if each.workflow in runs]:
        return "; ".join(f"{each.workflow} is parked: {each.reason}" for each in parked)
    if not any(host.status is HostStatus.UP and not host.drained for host in court_status.hosts):
        return "no host takes runs: `kingdom host list` shows all hosts"
    return ""


def how_to_answer(ask: HumanQuestion) -> tuple[str, str]:
    """Return a question as a sentence, and the command that answers it."""
    choices = f" ({' / '.join(ask.choices)})" if ask.choices else ""
    return f"{ask.id} asks: {ask.text}{choices}", f"Answer with: kingdom answer {ask.id} TEXT"


async def _find_question(transaction: Transaction, event: ExternalEvent) -> HumanQuestion | None:
    """Return the oldest open question that blocks an event."""
    given = {route.assignment_id for route in event.routes if route.assignment_id}
    if not given:
        return None
    # A question has the id of the first assignment of its run. After a resume, another assignment may ask it.
    return next((ask for ask in await open_questions(transaction) if given & {ask.id, ask.assignment_id}), None)


class _DelayReporter:
    """Reports the delay of an event once it has lasted for a while, when its reason changes, and then periodically."""

    def __init__(self, output: CommandOutput, event_id: str, patience_seconds: float, again_seconds: float) -> None:
        self._output = output
        self._event_id = event_id
        self._patience_seconds = patience_seconds
        self._again_seconds = again_seconds
        self._current = self._reported = ""
        self._since = self._reported_at = time.monotonic()

    def update(self, delay: str) -> None:
        # Numbers are ignored in the comparison, because loads and ages change all the time.
        key, now = _NUMBERS.sub("", delay), time.monotonic()
        if key != self._current:
            self._current, self._since = key, now
        is_reported = key == self._reported and now - self._reported_at < self._again_seconds
        if not key or is_reported or now - self._since < self._patience_seconds:
            return
        self._reported, self._reported_at = key, now
        self._output.note(f"{self._event_id} is waiting: {delay}")
