"""`kingdom event …`: what happened outside, as the court keeps it."""

import asyncio
from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Query, Record
from kingdom.cli import exit_code, inputs
from kingdom.cli.command import Call, command
from kingdom.cli.court import COURT, ConfigFile, EventId, in_court
from kingdom.clock import utc_now
from kingdom.court.documents import EventStatus, ExternalEvent, Priority
from kingdom.court.king import reactions
from kingdom.court.records import EVENTS, load, receive
from kingdom.errors import Conflict
from kingdom.ids import new_id
from kingdom.workflow.records import change, each

app = typer.Typer(no_args_is_help=True, add_completion=False, help="What happened outside, as the court keeps it.")
_SOURCE = "cli"
_LOOK_SECONDS = 0.2


@command(app, "list")
async def list_(
    call: Call,
    *,
    status: Annotated[EventStatus | None, typer.Option(help="Only those that have come so far.")] = None,
    outcome: Annotated[str, typer.Option(help="Only those that ended so, such as unrouted.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show no more than this many, the newest.")] = 50,
    config: ConfigFile = None,
) -> None:
    """Show events, the newest last.

    Example: kingdom event list --status completed --outcome unrouted

    JSON: an array of {id, type, source, repo, payload, priority, created_at, status, outcome, reason, key, routes}.
    """
    call = in_court(call, config)
    async with call.bus(COURT, create=False) as bus, bus.transaction() as transaction:
        found = [_read(record) async for record in each(transaction, Query(kind=EVENTS.name, state=status))]
    events = sorted(
        (event for event in found if outcome in ("", event.outcome)), key=lambda event: (event.created_at, event.id)
    )[-limit:]
    if call.output.json:
        call.output.document(events)
    elif events:
        columns = ("id", "type", "repo", "priority", "status", "outcome", "generals")
        call.output.table(columns, [_row(event) for event in events])
    else:
        call.output.say("There is no such event. Send one: kingdom event send --type TYPE")


@command(app, "show")
async def show(call: Call, event_id: EventId, *, config: ConfigFile = None) -> None:
    """Show an event as it is stored.

    Example: kingdom event show evt-github-12345678-20260207100000

    JSON: {id, type, source, repo, payload, priority, created_at, status, outcome, reason, key, routes}.
    """
    call = in_court(call, config)
    async with call.bus(COURT, create=False) as bus, bus.transaction() as transaction:
        _, event = await load(transaction, ExternalEvent, event_id)
    if call.output.json:
        call.output.document(event)
        return
    document = msgspec.to_builtins(event)
    call.output.table(("field", "value"), [(name, _text(value)) for name, value in document.items()])


@command(app, "send")
async def send(
    call: Call,
    document: Annotated[
        str, typer.Argument(metavar="[DOCUMENT]", help="The event as JSON: the text, @file, or - for standard input.")
    ] = "",
    *,
    event_type: Annotated[str, typer.Option("--type", help="What happened, such as github.pr.comment.")] = "",
    repo: Annotated[str, typer.Option(help="The repository, such as acme/app.")] = "",
    payload: Annotated[str, typer.Option(help="What is known of it, a JSON object: the text, @file or -.")] = "",
    priority: Annotated[Priority | None, typer.Option(help="How much it matters; else normal.")] = None,
    event_id: Annotated[str, typer.Option("--id", help="Its id; the same id twice is the same event.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended; exit 1 if it failed.")] = False,
    config: ConfigFile = None,
) -> int | None:
    """Tell the court of an event, as if it had happened outside.

    Options fill in or replace what the document says.

    Example: kingdom event send --type github.pr.comment --repo acme/app --payload '{"number": 7}'

    Example: kingdom event send @event.json

    JSON: the event, as `show` answers it.
    """
    given: dict[str, Any] = {
        "type": event_type,
        "repo": repo,
        "payload": inputs.payload(payload) if payload else None,
        "priority": priority,
        "id": event_id,
    }
    fields = _defaults() | (inputs.payload(document) if document else {})
    fields |= {name: value for name, value in given.items() if value}
    if not fields["type"]:
        raise typer.BadParameter("say what happened: --type, or a document with a type.")
    fields["source"] = fields["source"] or _source(str(fields["id"]))
    event = ExternalEvent.read(fields).as_new()
    call = in_court(call, config)
    async with call.bus(COURT) as bus:
        if not await change(bus, partial(receive, event=event, actor=call.settings.actor)):
            raise Conflict(f"event {event.id} was seen already: give it another id")
        if wait:
            call.output.note(f"{event.id} waits for the King. What becomes of it: kingdom why {event.id}")
            event = await _ended(bus, event.id)
    if call.output.json:
        call.output.document(event)
    if wait:
        how = event.outcome or event.status
        call.output.say(f"{event.id} ended: {how}{f', {event.reason}' if event.reason else ''}.")
    else:
        call.output.say(f"{event.id} waits for the King. What becomes of it: kingdom why {event.id}")
    return exit_code.FAILED if event.status is EventStatus.FAILED else None


@command(app, "reroute")
async def reroute(call: Call, event_id: EventId, *, config: ConfigFile = None) -> None:
    """Let the King decide anew about an event that no General wanted.

    Example: kingdom event reroute evt-github-12345678-20260207100000

    JSON: the event, as `show` answers it.
    """

    async def act(transaction: Transaction) -> ExternalEvent:
        return await reactions.reroute(transaction, event_id)

    call = in_court(call, config)
    async with call.bus(COURT, create=False) as bus:
        event = await change(bus, act)
    if call.output.json:
        call.output.document(event)
    call.output.say(f"{event_id} waits for the King again.")


def _defaults() -> dict[str, Any]:
    return {
        "id": new_id(f"evt-{_SOURCE}"),
        "type": "",
        "source": "",
        "repo": None,
        "payload": {},
        "priority": Priority.NORMAL,
        "created_at": utc_now().isoformat(),
        "status": EventStatus.PENDING,
    }


def _source(event_id: str) -> str:
    """Return the source that an id names, as in evt-SOURCE-123."""
    parts = event_id.split("-")
    return parts[1] if len(parts) > 1 else _SOURCE


def _read(record: Record) -> ExternalEvent:
    return msgspec.convert(record.doc, ExternalEvent)


def _row(event: ExternalEvent) -> tuple[object, ...]:
    generals = ", ".join(route.general for route in event.routes) or None
    return (event.id, event.type, event.repo, event.priority, event.status, event.outcome or None, generals)


async def _ended(bus: Bus, event_id: str) -> ExternalEvent:
    """Wait until an event has ended, however long that takes."""
    while True:
        async with bus.transaction() as transaction:
            _, event = await load(transaction, ExternalEvent, event_id)
        if event.status in EVENTS.final:
            return event
        await asyncio.sleep(_LOOK_SECONDS)


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
