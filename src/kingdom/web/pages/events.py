"""Events and assignments: what was decided about them and why, and what became of them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlencode

from aiohttp import web

from kingdom.actions.listings import RecordPage, list_records, records_query
from kingdom.bus import RecordKind
from kingdom.court.documents import Assignment, AssignmentStatus, EventStatus, ExternalEvent, Priority, title_of
from kingdom.court.king.outcomes import UNROUTED
from kingdom.court.records import ASSIGNMENTS, EVENTS, load
from kingdom.web.api.court import AssignmentsQuery, EventsQuery, show_event_why
from kingdom.web.pages.frame import PageFrame, html_response, open_page
from kingdom.web.pages.wording import StateWord, indented
from kingdom.web.route import ApiCall

# The outcomes of events that ended without work, and the statuses of events and assignments.
_OUTCOMES = {UNROUTED: StateWord("Unrouted", "off"), "superseded": StateWord("Superseded", "off")}
_EVENTS: Mapping[EventStatus, StateWord] = {
    EventStatus.PENDING: StateWord("Undecided", "idle"),
    EventStatus.DISPATCHED: StateWord("Dispatched", "run"),
    EventStatus.COMPLETED: StateWord("Completed", "good"),
    EventStatus.FAILED: StateWord("Failed", "bad"),
}
_ASSIGNMENTS: Mapping[AssignmentStatus, StateWord] = {
    AssignmentStatus.PENDING: StateWord("Pending", "idle"),
    AssignmentStatus.IN_PROGRESS: StateWord("Running", "run"),
    AssignmentStatus.NEEDS_HUMAN: StateWord("Waiting", "ask"),
    AssignmentStatus.COMPLETED: StateWord("Completed", "good"),
    AssignmentStatus.FAILED: StateWord("Failed", "bad"),
    AssignmentStatus.SKIPPED: StateWord("Skipped", "off"),
}
EVENT_GROUPS: Mapping[str, EventStatus | None] = {
    "All": None,
    "Waiting": EventStatus.PENDING,
    "Dispatched": EventStatus.DISPATCHED,
    "Completed": EventStatus.COMPLETED,
    "Failed": EventStatus.FAILED,
}
ASSIGNMENT_GROUPS: Mapping[str, AssignmentStatus | None] = {
    "All": None,
    **{word.word: status for status, word in _ASSIGNMENTS.items()},
}


def event_state(event: ExternalEvent) -> StateWord:
    """Return the state of an event."""
    if event.status is EventStatus.PENDING and any(route.waiting for route in event.routes):
        return StateWord("Waiting", "idle")
    return _OUTCOMES.get(event.outcome) or _EVENTS[event.status]


def assignment_state(assignment: Assignment) -> StateWord:
    """Return the state of an assignment."""
    return assignment_word(assignment.status)


def assignment_word(status: str) -> StateWord:
    """Return the word and the CSS class of an assignment's status."""
    return _ASSIGNMENTS[AssignmentStatus(status)]


async def show_events(call: ApiCall) -> web.Response:
    """Show events with the decisions about them."""
    query: EventsQuery = call.query
    async with _open_list(call, EVENTS) as (page, found):
        return page.render(
            "events.html",
            events=sorted(found.read(ExternalEvent), key=lambda event: event.created_at, reverse=True),
            following=found.next,
            query=query,
            address=_address("/events", status=query.status),
            groups=EVENT_GROUPS,
            priorities=list(Priority),
            event_state=event_state,
            title_of=title_of,
        )


async def show_event(call: ApiCall) -> web.Response:
    """Show an event: the decision, the reason, and where to look further."""
    async with open_page(call, "/events") as page:
        _, event = await load(page.transaction, ExternalEvent, call.path["id"])
        return page.render(
            "event.html",
            event=event,
            state=event_state(event),
            subject=title_of(event.payload),
            can_reroute=event.status is EventStatus.COMPLETED and event.outcome == UNROUTED,
            document=indented(event.payload),
        )


async def show_why(call: ApiCall) -> web.Response:
    """Return the reasons of the decision about an event as an HTML fragment."""
    explained = await show_event_why(call)
    now = call.context.clock()
    return html_response("event-why.html", explained=explained, now=now, assignment_word=assignment_word)


async def show_assignments(call: ApiCall) -> web.Response:
    """Show assignments, the newest first."""
    query: AssignmentsQuery = call.query
    async with _open_list(call, ASSIGNMENTS) as (page, found):
        shown = [each for each in found.read(Assignment) if query.general in ("", each.target_general)]
        return page.render(
            "assignments.html",
            assignments=shown,
            following=found.next,
            query=query,
            address=_address("/assignments", status=query.status, general=query.general),
            groups=ASSIGNMENT_GROUPS,
            assignment_state=assignment_state,
            title_of=title_of,
        )


async def show_assignment(call: ApiCall) -> web.Response:
    """Show an assignment, with its event, its run and its story."""
    async with open_page(call, "/events") as page:
        _, assignment = await load(page.transaction, Assignment, call.path["id"])
        return page.render(
            "assignment.html",
            assignment=assignment,
            state=assignment_state(assignment),
            subject=title_of(assignment.payload),
            document=indented(assignment.payload),
        )


@asynccontextmanager
async def _open_list(call: ApiCall, kind: RecordKind) -> AsyncIterator[tuple[PageFrame, RecordPage]]:
    """Begin a page of events or assignments, and read its records, the last ids first."""
    query: EventsQuery | AssignmentsQuery = call.query
    state, after, limit = query.status, query.after, query.limit
    first = records_query(kind, state=state, after=after, limit=limit, descending=True)
    async with open_page(call, "/events", [first]) as page:
        found = await list_records(page.transaction, kind, state=state, after=after, limit=limit, descending=True)
        yield page, found


def _address(path: str, **values: str | None) -> str:
    """Return the address of a list, to which the cursor of the next page can be added."""
    return f"{path}?{urlencode({name: value for name, value in values.items() if value})}&"
