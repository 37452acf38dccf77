"""The court: status, events, assignments, Generals, money, machines."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kingdom.access.acts import act_in_transaction
from kingdom.actions.costs import read_costs
from kingdom.actions.events import event_defaults, send_event, source_of
from kingdom.actions.generals import find_general, simulate_change, to_listed_generals
from kingdom.actions.health import read_machines
from kingdom.actions.hosts import find_host
from kingdom.actions.listings import list_records
from kingdom.actions.status import read_current_status
from kingdom.bus.port import Transaction
from kingdom.court.documents import Assignment, AssignmentStatus, EventStatus, ExternalEvent, Priority
from kingdom.court.explain.timeline import Timeline
from kingdom.court.explain.timeline_builder import build_timeline
from kingdom.court.explain.timeline_data import gather_data
from kingdom.court.followups.records import FOLLOWUPS, Followup, FollowupState
from kingdom.court.followups.summary import FollowupSummary, summarize_followup
from kingdom.court.health_summary import HealthSummary
from kingdom.court.king.answers import is_answer
from kingdom.court.king.costs import DAYS_KEPT
from kingdom.court.king.reactions import reroute_event
from kingdom.court.king.simulation import RoutingSimulation
from kingdom.court.king.why import EventExplanation, explain_event
from kingdom.court.package import Package
from kingdom.court.records import ASSIGNMENTS, EVENTS, load
from kingdom.court.status import CourtStatus
from kingdom.errors import MalformedRequest, Misconfigured
from kingdom.views.costs import Costs
from kingdom.views.generals import ListedGenerals
from kingdom.views.health import MachineUse
from kingdom.web.route import ApiCall, Page, PageQuery, Text, part_of
from kingdom.workflow.hosts import retire_host, set_drained
from kingdom.workflow.model.resources.host import Host
from kingdom.workflow.records import HOSTS
from kingdom.workflow.relocation import undrain_host

_SOURCE = "web"
_SIMULATED_DAYS_MAX = 90


class EventsQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Which events to list."""

    status: EventStatus | None = None


class AssignmentsQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Which assignments to list."""

    status: AssignmentStatus | None = None
    general: str = ""


class FollowupsQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Which followed pull requests to list."""

    state: FollowupState | None = None


class EventToSend(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event to send, as if it came from an outside system. Without an id, a new id is chosen."""

    type: Annotated[str, Meta(min_length=1, max_length=200)]
    repo: str | None = None
    payload: dict[str, Any] = {}
    priority: Priority = Priority.NORMAL
    id: str = ""


class CostsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many days to sum, today included."""

    days: Annotated[int, Meta(ge=1, le=DAYS_KEPT)] = 30


async def show_status(call: ApiCall) -> CourtStatus:
    """Show the state of the court: health, roles, money, slots, what waits and why, and what needs a person."""
    context = call.context
    return await read_current_status(context.bus, context.settings, context.realm)


async def show_health(call: ApiCall) -> HealthSummary:
    """Show the health of the machines, and how it limits new work."""
    return (await show_status(call)).health


async def list_machines(call: ApiCall) -> Page[MachineUse]:
    """List the last measured use of each machine, with the thresholds of the levels of health."""
    async with call.context.bus.transaction() as transaction:
        machines = await read_machines(transaction, call.context.realm.chamberlain.health)
    return part_of(machines, lambda machine: machine.name, call.query)


async def show_costs(call: ApiCall) -> Costs:
    """Show what the work of Generals costs by day, General, repository and model, and a forecast for the month."""
    return await read_costs(call.context.bus, call.context.realm, call.context.clock(), call.query.days)


async def list_events(call: ApiCall) -> Page[ExternalEvent]:
    """List events in the order of their ids."""
    query: EventsQuery = call.query
    async with call.context.bus.transaction() as transaction:
        page = await list_records(transaction, EVENTS, state=query.status, after=query.after, limit=query.limit)
    return Page(items=page.read(ExternalEvent), next=page.next)


async def show_event(call: ApiCall) -> ExternalEvent:
    """Show an event."""
    async with call.context.bus.transaction() as transaction:
        return (await load(transaction, ExternalEvent, call.path["id"]))[1]


async def show_event_why(call: ApiCall) -> EventExplanation:
    """Show where an event is: which Generals get it and why, what it waits for, and its result."""
    king = await asyncio.to_thread(call.context.king_context)
    async with call.context.bus.transaction() as transaction:
        return await explain_event(transaction, call.path["id"], call.context.clock(), king)


async def explain(call: ApiCall) -> Timeline:
    """Show the timeline from an event to its result, given the id of an event, an assignment or a run."""
    context = call.context
    king = await asyncio.to_thread(context.king_context)
    return build_timeline(await gather_data(context.bus, context.operations, call.path["id"], king.follow_policy))


async def list_followups(call: ApiCall) -> Page[FollowupSummary]:
    """List the followed pull requests by name, with the rounds that each has used and what waits."""
    query: FollowupsQuery = call.query
    king = await asyncio.to_thread(call.context.king_context)
    async with call.context.bus.transaction() as transaction:
        page = await list_records(transaction, FOLLOWUPS, state=query.state, after=query.after, limit=query.limit)
    return Page(items=[summarize_followup(each, king.follow_policy) for each in page.read(Followup)], next=page.next)


async def post_event(call: ApiCall) -> Any:
    """Send an event to the court, as if it came from an outside system."""
    given: EventToSend = call.body
    call.visitor.require_general("")
    fields = event_defaults(_SOURCE) | {
        name: value for name, value in msgspec.to_builtins(given).items() if value not in ("", None)
    }
    fields["source"] = source_of(str(fields["id"]), _SOURCE)
    event = ExternalEvent.read(fields).as_new()
    if is_answer(event):
        # Its payload would name the person, who needs other rights to answer.
        raise MalformedRequest("an answer is not an event to send: use POST /api/v1/questions/ID/answer")

    async def perform(transaction: Transaction) -> ExternalEvent:
        return (await send_event(transaction, event=event, actor=call.visitor.actor))[0]

    return await act_in_transaction(call.context.bus, call.act("send", given.id or given.type, "event"), perform)


async def post_event_reroute(call: ApiCall) -> Any:
    """Have the King decide again about an event that no General accepted."""
    call.visitor.require_general("")
    event_id = call.path["id"]

    async def perform(transaction: Transaction) -> ExternalEvent:
        return await reroute_event(transaction, event_id)

    return await act_in_transaction(call.context.bus, call.act("reroute", event_id, "event"), perform)


async def list_assignments(call: ApiCall) -> Page[Assignment]:
    """List assignments, the newest first. If `general` is given, a page can have fewer items than `limit`."""
    query: AssignmentsQuery = call.query
    async with call.context.bus.transaction() as transaction:
        page = await list_records(
            transaction, ASSIGNMENTS, state=query.status, after=query.after, limit=query.limit, descending=True
        )
    items = [each for each in page.read(Assignment) if query.general in ("", each.target_general)]
    return Page(items=items, next=page.next)


async def show_assignment(call: ApiCall) -> Assignment:
    """Show an assignment."""
    async with call.context.bus.transaction() as transaction:
        return (await load(transaction, Assignment, call.path["id"]))[1]


async def list_generals(call: ApiCall) -> ListedGenerals:
    """List every General, including broken ones."""
    loaded = await asyncio.to_thread(call.context.load_packages)
    return to_listed_generals(call.context.generals_directory, loaded)


async def show_general(call: ApiCall) -> Package:
    """Show which events a General handles, when it acts, what it may do, and what it runs."""
    strangers = call.context.realm.sentinel.accepts_strangers
    return await asyncio.to_thread(
        find_general, call.context.generals_directory, call.path["name"], accepts_strangers=strangers
    )


class SimulateGeneral(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A changed general.yaml, and for how many days of past events to compare the routing."""

    definition: Text
    days: Annotated[int, Meta(ge=1, le=_SIMULATED_DAYS_MAX)] = 7


async def post_general_simulate(call: ApiCall) -> RoutingSimulation:
    """Show which decisions about past events would change with a changed general.yaml. Nothing is stored."""
    call.visitor.require_general(call.path["name"])
    loaded = await asyncio.to_thread(call.context.load_packages)
    since = call.context.clock() - timedelta(days=call.body.days)
    return await simulate_change(call.context.bus, loaded, call.path["name"], call.body.definition, since)


async def list_hosts(call: ApiCall) -> Page[Host]:
    """List the machines that run agents."""
    query: PageQuery = call.query
    async with call.context.bus.transaction() as transaction:
        page = await list_records(transaction, HOSTS, after=query.after, limit=query.limit)
    return Page(items=page.read(Host), next=page.next)


class RetireHost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The confirmation that a host no longer runs."""

    no_longer_runs: bool


async def post_host_drain(call: ApiCall) -> Any:
    """Stop giving new runs to a host; the runs that it has continue there."""
    call.visitor.require_general("")
    name = call.path["name"]
    perform = partial(set_drained, host_id=name, drained=True, actor=call.visitor.actor)
    return await act_in_transaction(call.context.bus, call.act("drain", name, "host"), perform)


async def post_host_undrain(call: ApiCall) -> Any:
    """Give new runs to a drained host again."""
    call.visitor.require_general("")
    name = call.path["name"]
    perform = partial(undrain_host, host_id=name, actor=call.visitor.actor)
    return await act_in_transaction(call.context.bus, call.act("undrain", name, "host"), perform)


async def post_host_retire(call: ApiCall) -> Any:
    """Declare a host lost now, so that its runs move to other hosts. Do this only when the host no longer runs."""
    call.visitor.require_general("")
    name = call.path["name"]
    if not call.body.no_longer_runs:
        raise Misconfigured(f"host {name} may still run: confirm with noLongerRuns: true that it does not")
    host = await find_host(call.context.bus, name)

    async def perform(transaction: Transaction) -> Host:
        await retire_host(transaction, host)
        record = await transaction.get(HOSTS.name, name)
        return msgspec.convert(record.doc, Host) if record else host

    return await act_in_transaction(call.context.bus, call.act("retire", name, "host"), perform)
