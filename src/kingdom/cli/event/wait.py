"""Waiting for the end of an event: who waits is told what holds it up, and stops where a person is asked."""

import asyncio
import re
import time
from dataclasses import dataclass

from kingdom.bootstrap import operations_of
from kingdom.bus.port import Bus, Transaction
from kingdom.cli.shared.output import CommandOutput
from kingdom.clock import utc_now
from kingdom.court.asks import Ask
from kingdom.court.documents import EventStatus, ExternalEvent
from kingdom.court.envoy.answers import open_asks
from kingdom.court.king.why import ADMITTED, Explanation, explain
from kingdom.court.records import EVENTS, load
from kingdom.court.standing import Lookout, Standing, look
from kingdom.workflow.model.host import HostStatus

_LOOK_SECONDS = 0.2
_EXPLAIN_SECONDS = 1.0
# What holds an event up for less than this is no news: roles take a moment to begin.
PATIENCE_SECONDS = 3.0
# So often the same is said again, as a sign of life.
_AGAIN_SECONDS = 60.0
_NUMBERS = re.compile(r"[\d.]+")
_RUN_ALL = "run `kingdom up`"


@dataclass(frozen=True, slots=True)
class Rest:
    """Where an event came to rest: at its end, or at a question for a person."""

    event: ExternalEvent
    ask: Ask | None = None


async def wait_for(
    output: CommandOutput,
    bus: Bus,
    event_id: str,
    lookout: Lookout,
    patience_seconds: float = PATIENCE_SECONDS,
    again_seconds: float = _AGAIN_SECONDS,
) -> Rest:
    """Wait until an event has ended or a person is asked, however long that takes; says what it waits for."""
    holdup = _Holdup(output, event_id, patience_seconds, again_seconds)
    explained_at = time.monotonic()
    while True:
        async with bus.transaction() as transaction:
            _, event = await load(transaction, ExternalEvent, event_id)
            if event.status in EVENTS.final:
                return Rest(event)
            if ask := await _asked(transaction, event):
                return Rest(event, ask)
        if time.monotonic() - explained_at >= min(_EXPLAIN_SECONDS, patience_seconds):
            explained_at = time.monotonic()
            standing = await look(bus, operations_of(bus), lookout)
            async with bus.transaction() as transaction:
                explanation = await explain(transaction, event_id, utc_now(), lookout.terms)
            holdup.is_now(held_up_by(explanation, standing))
        await asyncio.sleep(_LOOK_SECONDS)


def held_up_by(explanation: Explanation, standing: Standing) -> str:
    """Return what an event that has not ended waits for, or nothing where it is on its way."""
    event = explanation.event
    well = {each.role for each in standing.roles if each.is_well}
    if not well:
        return f"nothing runs, {_RUN_ALL}"
    needed = "king" if event.status is EventStatus.PENDING else "general"
    if needed not in well:
        return f"the role {needed} does not run: `kingdom role {needed}`, or {_RUN_ALL}"
    if event.status is EventStatus.PENDING:
        held = [
            f"{wait.general} does not get it yet: {wait.held_by}"
            for wait in explanation.waits
            if wait.held_by != ADMITTED
        ]
        return "; ".join(held) if explanation.waits else "the King has not decided about it yet"
    runs = {given.workflow_id for given in explanation.assignments}
    if parked := [each for each in standing.parked if each.workflow in runs]:
        return "; ".join(f"{each.workflow} is parked: {each.reason}" for each in parked)
    if not any(host.status is HostStatus.UP for host in standing.hosts):
        return "no host is up that could run its agent: `kingdom host list` shows those there are"
    return ""


def how_to_answer(ask: Ask) -> tuple[str, str]:
    """Return a question as a person reads it, and the command that answers it."""
    choices = f" ({' / '.join(ask.choices)})" if ask.choices else ""
    return f"{ask.id} asks: {ask.question}{choices}", f"Answer with: kingdom answer {ask.id} TEXT"


async def _asked(transaction: Transaction, event: ExternalEvent) -> Ask | None:
    """Return the oldest open question without which an event does not end."""
    given = {route.task_id for route in event.routes if route.task_id}
    if not given:
        return None
    # A resumed assignment asks in the name of its root.
    return next((ask for ask in await open_asks(transaction) if given & {ask.id, ask.task_id}), None)


class _Holdup:
    """Says what holds an event up, once it has lasted, and again when it is something else or after a while."""

    def __init__(self, output: CommandOutput, event_id: str, patience_seconds: float, again_seconds: float) -> None:
        self._output = output
        self._event_id = event_id
        self._patience_seconds = patience_seconds
        self._again_seconds = again_seconds
        self._seen = self._told = ""
        self._since = self._told_at = time.monotonic()

    def is_now(self, words: str) -> None:
        # A share of the processor or an age is another one each time, and no news.
        alike, now = _NUMBERS.sub("", words), time.monotonic()
        if alike != self._seen:
            self._seen, self._since = alike, now
        is_told = alike == self._told and now - self._told_at < self._again_seconds
        if not alike or is_told or now - self._since < self._patience_seconds:
            return
        self._told, self._told_at = alike, now
        self._output.note(f"{self._event_id} waits: {words}")
