"""The table of the Generals' reactions to events of runs and notices of the court."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from kingdom.bus.event import Event
from kingdom.bus.outcome import Outcome
from kingdom.bus.payload import EventType
from kingdom.bus.port import Transaction
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.court.general import assignment_start, costs, runs
from kingdom.court.general.context import COURT_REQUESTER, GeneralContext
from kingdom.court.streams import (
    ASSIGNMENT_GIVEN,
    PETITION_SETTLED,
    PETITIONS_DUE,
    RETRY_DUE,
    SETTLED_STREAM,
    assignment_stream,
)
from kingdom.workflow.model.messages import answers, events
from kingdom.workflow.model.messages.catalog import EVENT_TYPES
from kingdom.workflow.streams import requester_stream

Handler = Callable[[GeneralContext, Event[Any], Transaction], Awaitable[Outcome | None]]

# Reactions to events of runs.
RUN_REACTIONS: Mapping[type[events.DomainEvent], Handler] = {
    events.WorkStarted: runs.on_work_started,
    events.WorkCompleted: runs.on_work_completed,
    answers.QueryFailed: runs.on_query_failed,
    answers.AgentPetitioned: runs.on_agent_petitioned,
    events.WorkflowAwaiting: runs.on_run_awaiting,
    events.WorkflowResumed: runs.on_run_resumed,
    events.WorkflowCostCorrected: costs.on_cost_corrected,
    events.WorkflowCompleted: runs.on_run_completed,
    events.WorkflowCancelled: runs.on_run_cancelled,
    events.WorkflowFailed: runs.on_run_failed,
}
# Reactions to notices of the King and of petitions.
COURT_REACTIONS: tuple[tuple[EventType[Any], Handler], ...] = (
    (ASSIGNMENT_GIVEN, assignment_start.start_assignment),
    (RETRY_DUE, assignment_start.retry_assignment),
    (PETITION_SETTLED, runs.on_petition_settled),
    (PETITIONS_DUE, runs.on_petition_settled),
)


def register(dispatcher: Dispatcher, context: GeneralContext) -> None:
    """Register the reactions of the Generals."""
    for event, handler in RUN_REACTIONS.items():
        dispatcher.reaction(EVENT_TYPES[event], stream=requester_stream(COURT_REQUESTER))(partial(handler, context))
    for notice, handler in COURT_REACTIONS:
        dispatcher.reaction(notice)(partial(handler, context))


def streams_of(generals: Iterable[str]) -> tuple[str, ...]:
    """Return the streams of a worker for these Generals."""
    return (*map(assignment_stream, generals), requester_stream(COURT_REQUESTER), SETTLED_STREAM.name)
