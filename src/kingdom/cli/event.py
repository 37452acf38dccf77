"""`kingdom event …`: what happened outside, as the court keeps it."""

from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from kingdom.bootstrap import directory_of
from kingdom.bus.port import Transaction
from kingdom.bus.record import RecordQuery, read_document
from kingdom.cli import exit_code, inputs
from kingdom.cli.command import Call, Newest, command
from kingdom.cli.court import COURT, EventId, terms_of
from kingdom.cli.event_wait import Rest, how_to_answer, wait_for
from kingdom.cli.shape import array, one
from kingdom.cli.workflow_id import meant_id
from kingdom.clock import utc_now
from kingdom.court.documents import EVENT_TYPE, EventStatus, ExternalEvent, Priority
from kingdom.court.heartbeat import ROLES
from kingdom.court.king import reactions
from kingdom.court.king.outcomes import UNROUTED
from kingdom.court.records import EVENTS, load, receive
from kingdom.court.standing import Lookout
from kingdom.errors import Permanent
from kingdom.ids import new_id
from kingdom.text import sentence
from kingdom.workflow.records import change, each

app = typer.Typer(no_args_is_help=True, add_completion=False, help="What happened outside, as the court keeps it.")
_SOURCE = "cli"


@command(app, "list", answer=array(ExternalEvent))
async def list_(
    call: Call,
    *,
    status: Annotated[EventStatus | None, typer.Option(help="Only those that have come so far.")] = None,
    outcome: Annotated[str, typer.Option(help="Only those that ended so, such as unrouted.")] = "",
    limit: Newest = 50,
) -> None:
    """Show events, the newest last.

    Example: kingdom event list --status completed --outcome unrouted

    JSON: an array of {id, type, source, repo, payload, priority, created_at, status, outcome, reason, key, routes}.
    """
    async with call.bus(COURT, create=False) as bus, bus.transaction() as transaction:
        records = [record async for record in each(transaction, RecordQuery(kind=EVENTS.name, state=status))]
    found = [event for event in call.readable(records, ExternalEvent) if outcome in ("", event.outcome)]
    events = sorted(found, key=lambda event: (event.created_at, event.id))[-limit:]
    if call.output.json:
        call.output.document(events)
    elif events:
        columns = ("id", "type", "repo", "priority", "status", "outcome", "generals")
        call.output.table(columns, [_row(event) for event in events])
    else:
        call.output.say("There is no such event. Send one: kingdom send --type TYPE")


@command(app, "show", answer=one(ExternalEvent))
async def show(call: Call, event_id: EventId) -> None:
    """Show an event as it is stored.

    Example: kingdom event show evt-github-12345678-20260207100000

    JSON: {id, type, source, repo, payload, priority, created_at, status, outcome, reason, key, routes}.
    """
    async with call.bus(COURT, create=False) as bus, bus.transaction() as transaction:
        _, event = await load(transaction, ExternalEvent, await meant_id(transaction, EVENTS, event_id))
    if call.output.json:
        call.output.document(event)
        return
    document = msgspec.to_builtins(event)
    call.output.table(("field", "value"), [(name, _text(value)) for name, value in document.items()])


@command(app, "send", answer=one(ExternalEvent))
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
    event_id: Annotated[
        str, typer.Option("--id", help="Its id, evt-SOURCE-NAME; the same id twice is the same event.")
    ] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it has ended or asks a person; the exit code tells which.")
    ] = False,
) -> int | None:
    """Tell the court of an event, as if it had happened outside.

    Options fill in or replace what the document says. An event that is known already is not sent again, so a script
    can repeat this. With --wait the exit code is 0 if it completed, 1 if it failed, 4 if it waits for a person; what
    holds it up meanwhile is told on standard error.

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
    event = _told(document, given)
    # In a directory that has nothing to do with a realm, nobody would ever look at it.
    is_meant = call.settings.store_is_named or call.settings.file is not None
    async with call.bus(COURT, create=is_meant) as bus:
        event, is_new = await change(bus, partial(_receive, event=event, actor=call.settings.actor))
        known = "waits for the King" if is_new else f"is known already ({event.status}) and was not sent again"
        words = f"{event.id} {known}. What becomes of it: kingdom why {event.id}"
        if wait:
            call.output.note(words)
            rest = await wait_for(call.output, bus, event.id, _lookout(call))
            return _tell_rest(call, rest)
    if call.output.json:
        call.output.document(event)
    call.output.say(words)
    return None


@command(app, "reroute", answer=one(ExternalEvent))
async def reroute(call: Call, event_id: EventId) -> None:
    """Let the King decide anew about an event that no General wanted.

    Example: kingdom event reroute evt-github-12345678-20260207100000

    JSON: the event, as `show` answers it.
    """

    async def act(transaction: Transaction) -> ExternalEvent:
        return await reactions.reroute(transaction, await meant_id(transaction, EVENTS, event_id))

    async with call.bus(COURT, create=False) as bus:
        event = await change(bus, act)
    if call.output.json:
        call.output.document(event)
    call.output.say(f"{event.id} waits for the King again.")


def _told(document: str, given: dict[str, Any]) -> ExternalEvent:
    """Return the event that a document and options tell of; what is given in both is as the options say."""
    if not document.isdigit() and EVENT_TYPE.fullmatch(document):
        raise typer.BadParameter(f"{document!r} is no event as JSON; did you mean --type {document}?")
    fields = _defaults() | (inputs.payload(document) if document else {})
    fields |= {name: value for name, value in given.items() if value}
    if not fields["type"]:
        raise typer.BadParameter("say what happened: --type, or a document with a type.")
    fields["source"] = fields["source"] or _source(str(fields["id"]))
    return ExternalEvent.read(fields).as_new()


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
    return parts[1] if event_id.startswith("evt-") and parts[1] else _SOURCE


def _row(event: ExternalEvent) -> tuple[object, ...]:
    generals = ", ".join(route.general for route in event.routes) or None
    return (event.id, event.type, event.repo, event.priority, event.status, event.outcome or None, generals)


async def _receive(transaction: Transaction, *, event: ExternalEvent, actor: str) -> tuple[ExternalEvent, bool]:
    """Return an event as it is stored, and whether that is new; an id stands for one happening only."""
    if await receive(transaction, event=event, actor=actor):
        return event, True
    record = await transaction.get(EVENTS.name, event.id)
    if record is None:
        raise Permanent(f"event {event.id} ended some time ago and is not kept any more: give a new one another id")
    known = read_document(record.doc, ExternalEvent)
    if (known.type, known.repo, known.payload) != (event.type, event.repo, event.payload):
        raise Permanent(f"event {event.id} is known already, with another content: give this one another id")
    return known, False


def _lookout(call: Call) -> Lookout:
    store = directory_of(call.settings.database_url)
    return Lookout(terms=terms_of(call, ""), settings=call.realm.chamberlain, roles=ROLES, store=store)


def _tell_rest(call: Call, rest: Rest) -> int | None:
    """Tell how an event ended or who is asked what, and return the exit code of that."""
    event = rest.event
    if call.output.json:
        call.output.document(event)
    if rest.ask:
        for line in how_to_answer(rest.ask):
            # A document has no place for it.
            (call.output.note if call.output.json else call.output.say)(line)
        return exit_code.WAITING
    reason = f", {event.reason}" if event.reason else ""
    call.output.say(sentence(f"{event.id} ended: {event.outcome or event.status}{reason}"))
    if event.outcome == UNROUTED:
        call.output.say(f"Which rule wants what: kingdom why {event.id}")
    return exit_code.FAILED if event.status is EventStatus.FAILED else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
