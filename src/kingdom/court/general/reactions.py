"""ONE table: what a General does about each thing that it hears of."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from kingdom.bus.event import Event
from kingdom.bus.outcome import Outcome
from kingdom.bus.payload import EventType
from kingdom.bus.port import Transaction
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.court.general import money, runs, taking_on
from kingdom.court.general.staff import ASKER, Staff
from kingdom.court.streams import (
    ASSIGNMENT_GIVEN,
    PETITION_SETTLED,
    PETITIONS_DUE,
    RETRY_DUE,
    SETTLED_STREAM,
    task_stream,
)
from kingdom.workflow.model import answers, events
from kingdom.workflow.model.catalogue import EVENT_TYPES
from kingdom.workflow.streams import told_stream

Handler = Callable[[Staff, Event[Any], Transaction], Awaitable[Outcome | None]]

# Of what a run tells whoever asked for it.
TOLD: Mapping[type[events.DomainEvent], Handler] = {
    events.WorkStarted: runs.work_started,
    events.WorkCompleted: runs.work_completed,
    answers.QueryFailed: runs.query_failed,
    answers.AgentPetitioned: runs.agent_petitioned,
    events.WorkflowAwaiting: runs.run_awaits,
    events.WorkflowResumed: runs.run_resumed,
    events.WorkflowCostCorrected: money.cost_corrected,
    events.WorkflowCompleted: runs.run_completed,
    events.WorkflowCancelled: runs.run_cancelled,
    events.WorkflowFailed: runs.run_failed,
}
# Of what the King and the court tell a General.
GIVEN: tuple[tuple[EventType[Any], Handler], ...] = (
    (ASSIGNMENT_GIVEN, taking_on.take_on),
    (RETRY_DUE, taking_on.try_again),
    (PETITION_SETTLED, runs.petition_settled),
    (PETITIONS_DUE, runs.petition_settled),
)


def register(dispatcher: Dispatcher, staff: Staff) -> None:
    """Let a worker do what Generals do."""
    for event, handler in TOLD.items():
        dispatcher.reaction(EVENT_TYPES[event], stream=told_stream(ASKER))(partial(handler, staff))
    for notice, handler in GIVEN:
        dispatcher.reaction(notice)(partial(handler, staff))


def streams_of(generals: Iterable[str]) -> tuple[str, ...]:
    """Return the streams that a worker for these Generals listens to."""
    return (*map(task_stream, generals), told_stream(ASKER), SETTLED_STREAM.name)
