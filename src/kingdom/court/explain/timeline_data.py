"""Gather the data of a timeline from the store, each part by its id or an index."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kingdom.bus.effects.ledger import Ledger
from kingdom.bus.effects.perform import find_ledger
from kingdom.bus.log import LogCursor, LoggedEntry
from kingdom.bus.operations import Operations
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordQuery, read_document
from kingdom.chronicle.events import EventDispatched
from kingdom.court.documents import Assignment, ExternalEvent, Route
from kingdom.court.followups.records import followups_of
from kingdom.court.followups.summary import FollowPolicies, FollowupSummary, summarize_followup
from kingdom.court.general.context import COURT_REQUESTER, root_id_of, run_id_of_root
from kingdom.court.heartbeat import ROLES
from kingdom.court.king.waiting_queue import WAITING_ENTRIES, WaitingEntry, read_entry
from kingdom.court.petitions.decision import Petition
from kingdom.court.petitions.records import petitions_of
from kingdom.court.records import ASSIGNMENTS, EVENTS, RESULTS
from kingdom.errors import NotFound
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.records import WORKFLOWS, each_record

_PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class StrandData:
    """The data of one strand: an assignment with those that resumed it, and its run. See `Strand`."""

    id: str
    route: Route | None = None
    waiting: WaitingEntry | None = None
    assignments: Sequence[Assignment] = ()
    workflow: Workflow | None = None
    petitions: Sequence[Petition] = ()
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)
    result: Mapping[str, Any] | None = None
    followups: Sequence[FollowupSummary] = ()
    entries: Sequence[LoggedEntry] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineData:
    """Everything about the requested id: its event, strands and log entries. `role_entries` are about the roles."""

    about: str
    event_id: str = ""
    event: ExternalEvent | None = None
    entries: Sequence[LoggedEntry] = ()
    strands: Sequence[StrandData] = ()
    role_entries: Sequence[LoggedEntry] = ()


async def gather_data(bus: Bus, operations: Operations, about: str, policies: FollowPolicies) -> TimelineData:
    """Return everything about an event, an assignment or a run, given by its full id."""
    async with bus.transaction() as transaction:
        event_id, only = await _find_event_id(transaction, about)
    entries = await read_all(operations, event_id, LogCursor()) if event_id else []
    async with bus.transaction() as transaction:
        record = await transaction.get(EVENTS.name, event_id) if event_id else None
        event = read_document(record.doc, ExternalEvent) if record else None
        found = [await _strand(transaction, each, policies) for each in _routes(event, entries, only)]
    # No entry about a strand precedes the first entry about its event. If there is none, the whole log is searched.
    start = entries[0].cursor if entries else LogCursor()
    strands = [await _with_entries(operations, strand, start) for strand in found]
    known = [strand for strand in strands if strand.entries or strand.assignments or strand.workflow or strand.waiting]
    if event is None and not entries and not known:
        raise NotFound(
            f"nothing is known about {about!r}: `kingdom event list`, `kingdom status` and `kingdom workflow list` show"
            " what is stored"
        )
    starts = [logged.cursor for strand in strands for logged in strand.entries[:1]]
    first = start if entries else min(starts, default=LogCursor())
    role_entries = [logged for role in ROLES for logged in await read_all(operations, role, first)]
    return TimelineData(
        about=about, event_id=event_id, event=event, entries=entries, strands=known, role_entries=role_entries
    )


async def read_all(operations: Operations, about: str, after: LogCursor) -> list[LoggedEntry]:
    """Return every entry about one id after a cursor."""
    entries: list[LoggedEntry] = []
    while page := await operations.read_log(after, _PAGE, about):
        entries += page
        after = page[-1].cursor
        if len(page) < _PAGE:
            break
    return entries


async def _find_event_id(transaction: Transaction, about: str) -> tuple[str, str]:
    """Return the id of the event, and the id of the requested assignment or run, or "" if the event is requested."""
    if about.startswith("evt-"):
        return about, ""
    record = await transaction.get(WORKFLOWS.name, about)
    run = Workflow.read(record.doc) if record else None
    if run and run.requester != COURT_REQUESTER:
        return "", about
    asked = await transaction.get(ASSIGNMENTS.name, root_id_of(about))
    if asked is None:
        return "", root_id_of(about)
    assignment = read_document(asked.doc, Assignment)
    return assignment.cause_id, assignment.root_id


def _routes(event: ExternalEvent | None, entries: Sequence[LoggedEntry], only: str) -> list[tuple[str, Route | None]]:
    """Return the routes of an event, or only that of `only`, by their assignment or waiting entry.

    The log replaces a deleted event.
    """
    routes: dict[str, Route | None] = {
        str(logged.entry.data["task_id"]): None for logged in entries if logged.entry.type == EventDispatched.type
    }
    for route in event.routes if event else ():
        if route.assignment_id or route.waiting:
            routes[route.assignment_id or route.waiting] = route
    if only:
        routes = {only: routes.get(only)}
    return list(routes.items())


async def _strand(transaction: Transaction, given: tuple[str, Route | None], policies: FollowPolicies) -> StrandData:
    strand_id, route = given
    if route and route.waiting:
        record = await transaction.get(WAITING_ENTRIES.name, route.waiting)
        return StrandData(id=strand_id, route=route, waiting=read_entry(record) if record else None)
    assignments = [
        read_document(record.doc, Assignment)
        async for record in each_record(transaction, RecordQuery(kind=ASSIGNMENTS.name, index="root", value=strand_id))
    ]
    run = await _first_record(transaction, WORKFLOWS.name, run_id_of_root(strand_id), strand_id)
    petitions = await petitions_of(transaction, strand_id)
    ledgers = {each.id: await find_ledger(transaction, each.system, each.key) for each in petitions}
    result = await transaction.get(RESULTS.name, strand_id)
    assignments.sort(key=lambda each: each.sort_key)
    followups = await followups_of(transaction, assignments[0]) if assignments else []
    return StrandData(
        id=strand_id,
        route=route,
        assignments=assignments,
        workflow=Workflow.read(run.doc) if run else None,
        petitions=sorted(petitions, key=lambda each: each.created_at),
        ledgers={key: ledger for key, ledger in ledgers.items() if ledger},
        result=result.doc if result else None,
        followups=[summarize_followup(each, policies) for each in followups],
    )


async def _first_record(transaction: Transaction, kind: str, *ids: str) -> Record | None:
    for record_id in ids:
        if record := await transaction.get(kind, record_id):
            return record
    return None


async def _with_entries(operations: Operations, strand: StrandData, start: LogCursor) -> StrandData:
    if strand.route and strand.route.waiting:
        return strand
    run = strand.workflow.id if strand.workflow else run_id_of_root(strand.id)
    names = dict.fromkeys([strand.id, *(each.id for each in strand.assignments), run])
    entries = [logged for name in names for logged in await read_all(operations, name, start)]
    return replace(strand, entries=sorted(entries, key=lambda logged: logged.cursor))
