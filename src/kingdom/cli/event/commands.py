"""`kingdom event …`: list, show, send and reroute events."""

from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from kingdom.actions.events import event_defaults, send_event, source_of
from kingdom.bootstrap import directory_of
from kingdom.bus.port import Transaction
from kingdom.bus.record import RecordQuery
from kingdom.cli.court.declarations import COURT, EventId, king_context_of, log_to_tasks
from kingdom.cli.event.wait import EventEnd, how_to_answer, wait_for
from kingdom.cli.framework import exit_code, inputs
from kingdom.cli.framework.command import CommandCall, Limit, command
from kingdom.cli.framework.json_result import array, one
from kingdom.cli.framework.workflow_ids import resolve_id
from kingdom.court.documents import EVENT_TYPE, EventStatus, ExternalEvent, Priority
from kingdom.court.heartbeat import ROLES
from kingdom.court.king import reactions
from kingdom.court.king.outcomes import UNROUTED
from kingdom.court.records import EVENTS, load
from kingdom.court.status import StatusSources
from kingdom.text import sentence
from kingdom.workflow.records import each_record, run_transaction

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="List and show events from outside systems, send one yourself, and route an event again.",
)
_SOURCE = "cli"


@command(app, "list", result=array(ExternalEvent))
async def list_(
    call: CommandCall,
    *,
    status: Annotated[EventStatus | None, typer.Option(help="Only events with this status.")] = None,
    outcome: Annotated[str, typer.Option(help="Only events with this outcome, such as unrouted.")] = "",
    limit: Limit = 50,
) -> None:
    """List events, the newest last.

    Example: kingdom event list --status completed --outcome unrouted

    JSON: an array of {id, type, source, repo, payload, priority, created_at, status, outcome, reason, key, routes}.
    """
    async with call.bus(COURT, create=False) as bus, bus.transaction() as transaction:
        records = [record async for record in each_record(transaction, RecordQuery(kind=EVENTS.name, state=status))]
    found = [event for event in call.readable(records, ExternalEvent) if outcome in ("", event.outcome)]
    events = sorted(found, key=lambda event: (event.created_at, event.id))[-limit:]
    if call.output.json:
        call.output.document(events)
    elif events:
        columns = ("id", "type", "repo", "priority", "status", "outcome", "generals")
        call.output.table(columns, [_row(event) for event in events])
        if len(found) > limit:
            call.output.note_older("events", limit)
    else:
        call.output.say("There are no events that match. Send one: kingdom send --type TYPE")


@command(app, "show", result=one(ExternalEvent))
async def show(call: CommandCall, event_id: EventId) -> None:
    """Show an event.

    Example: kingdom event show evt-github-12345678-20260207100000

    JSON: {id, type, source, repo, payload, priority, created_at, status, outcome, reason, key, routes}.
    """
    async with call.bus(COURT, create=False) as bus, bus.transaction() as transaction:
        _, event = await load(transaction, ExternalEvent, await resolve_id(transaction, EVENTS, event_id))
    if call.output.json:
        call.output.document(event)
        return
    document = msgspec.to_builtins(event)
    call.output.table(("field", "value"), [(name, _text(value)) for name, value in document.items()])


@command(app, "send", result=one(ExternalEvent))
async def send(
    call: CommandCall,
    document: Annotated[
        str, typer.Argument(metavar="[DOCUMENT]", help="The event as JSON: the text, @file, or - for standard input.")
    ] = "",
    *,
    event_type: Annotated[str, typer.Option("--type", help="The type of the event, such as github.pr.comment.")] = "",
    repo: Annotated[str, typer.Option(help="The repository, such as acme/app.")] = "",
    payload: Annotated[str, typer.Option(help="The payload, a JSON object: the text, @file or -.")] = "",
    priority: Annotated[Priority | None, typer.Option(help="The priority; by default normal.")] = None,
    event_id: Annotated[str, typer.Option("--id", help="The id of the event: evt-SOURCE-NAME.")] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the event ends or waits for a person; the exit code says which.")
    ] = False,
) -> int | None:
    """Send an event to the court, as if it came from an outside system.

    Options override the fields of the document. An event with a known id is not sent again, so a script can repeat the
    command. With --wait the exit code is 0 if the event completed, 1 if it failed, and 4 if it waits for a person;
    notes on standard error say what it waits for.

    Example: kingdom event send --type github.pr.comment --repo acme/app --payload '{"number": 7}'

    Example: kingdom event send @event.json

    JSON: the event, as `show` prints it.
    """
    given: dict[str, Any] = {
        "type": event_type,
        "repo": repo,
        "payload": inputs.payload(payload) if payload else None,
        "priority": priority,
        "id": event_id,
    }
    event = _event_of(document, given)
    # Outside of a realm no store is created, because no role would read it.
    create = call.settings.store_is_named or call.settings.file is not None
    log_to_tasks(call)
    async with call.bus(COURT, create=create) as bus:
        event, is_new = await run_transaction(bus, partial(send_event, event=event, actor=call.settings.actor))
        state = "waits for the King" if is_new else f"already exists ({event.status}) and was not sent again"
        words = f"{event.id} {state}. To see its progress: kingdom why {event.id}"
        if wait:
            call.output.note(words)
            return _report_end(call, await wait_for(call.output, bus, event.id, _status_sources(call)))
    if call.output.json:
        call.output.document(event)
    call.output.say(words)
    return None


@command(app, "reroute", result=one(ExternalEvent))
async def reroute(call: CommandCall, event_id: EventId) -> None:
    """Have the King decide again about an event that no General accepted.

    Example: kingdom event reroute evt-github-12345678-20260207100000

    JSON: the event, as `show` prints it.
    """

    async def act(transaction: Transaction) -> ExternalEvent:
        return await reactions.reroute_event(transaction, await resolve_id(transaction, EVENTS, event_id))

    async with call.bus(COURT, create=False) as bus:
        event = await run_transaction(bus, act)
    if call.output.json:
        call.output.document(event)
    call.output.say(f"{event.id} waits for the King again.")


def _event_of(document: str, given: dict[str, Any]) -> ExternalEvent:
    """Return the event of a document and options; options override the document."""
    if not document.isdigit() and EVENT_TYPE.fullmatch(document):
        raise typer.BadParameter(f"{document!r} is not an event as JSON; did you mean --type {document}?")
    fields = event_defaults(_SOURCE) | (inputs.payload(document) if document else {})
    fields |= {name: value for name, value in given.items() if value}
    if not fields["type"]:
        raise typer.BadParameter("the type is missing: add --type, or a document with a type.")
    fields["source"] = fields["source"] or source_of(str(fields["id"]), _SOURCE)
    return ExternalEvent.read(fields).as_new()


def _row(event: ExternalEvent) -> tuple[object, ...]:
    generals = ", ".join(route.general for route in event.routes) or None
    return (event.id, event.type, event.repo, event.priority, event.status, event.outcome or None, generals)


def _status_sources(call: CommandCall) -> StatusSources:
    store = directory_of(call.settings.database_url)
    return StatusSources(king=king_context_of(call, ""), settings=call.realm.chamberlain, roles=ROLES, store=store)


def _report_end(call: CommandCall, end: EventEnd) -> int | None:
    """Print how an event ended or which question it asks, and return the exit code."""
    event = end.event
    if call.output.json:
        call.output.document(event)
    if end.ask:
        for line in how_to_answer(end.ask):
            # With --json this is a note, because the document has no field for a question.
            (call.output.note if call.output.json else call.output.say)(line)
        return exit_code.WAITING
    reason = f", {event.reason}" if event.reason else ""
    call.output.say(sentence(f"{event.id} ended: {event.outcome or event.status}{reason}"))
    if event.outcome == UNROUTED:
        call.output.say(f"To see which rules match what: kingdom why {event.id}")
    return exit_code.FAILED if event.status is EventStatus.FAILED else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
