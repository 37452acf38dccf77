"""`kingdom bus publish`: publish one event, or a file of events."""

from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Annotated, Any
from uuid import UUID

import typer

from kingdom.bus.app import Application
from kingdom.bus.envelope import Envelope
from kingdom.bus.port import Bus
from kingdom.cli.framework import exit_code
from kingdom.cli.framework.command import CommandCall, application_for_any_stream, command
from kingdom.cli.framework.inputs import STANDARD_INPUT, attributes, duration, envelopes, opened, payload
from kingdom.cli.framework.json_result import lines
from kingdom.cli.framework.output import CommandOutput
from kingdom.clock import utc_now
from kingdom.errors import MalformedEvent, Misconfigured
from kingdom.views.bus import PublishResult

app = typer.Typer()
# Lines of a file per transaction. For this many events the store uses its fastest way to insert.
_BATCH_SIZE = 1000

_StreamName = Annotated[
    str | None, typer.Option(help="The stream; by default every stream that subscribes to the type.")
]
_Payload = Annotated[
    str | None, typer.Option("--payload", help="A JSON object, @FILE, or - for standard input; by default {}.")
]
_Key = Annotated[str | None, typer.Option(help="The partition key; events with the same key keep their order.")]
_EventId = Annotated[UUID | None, typer.Option("--id", help="The id of the event; a stream stores each id once.")]
_EventFile = Annotated[
    str | None, typer.Option(help="A file with one event as JSON per line, or - for standard input.")
]
_Ordered = Annotated[
    bool | None, typer.Option("--ordered/--unordered", help="Without --app: whether the stream is ordered.")
]


@command(app, "publish", result=lines(PublishResult))
async def publish(  # noqa: PLR0913 - one parameter per option
    call: CommandCall,
    *,
    stream: _StreamName = None,
    event_type: Annotated[str | None, typer.Option("--type", help="The type of the event.")] = None,
    body: _Payload = None,
    key: _Key = None,
    delay: Annotated[str | None, typer.Option(help="Deliver it later: 30s, 5m, 2h, 1d.")] = None,
    event_id: _EventId = None,
    aggregate: Annotated[str, typer.Option(help="The subject of the event, as TYPE/ID.")] = "",
    owner: Annotated[str, typer.Option(help="The owner of the event.")] = "",
    attribute: Annotated[list[str] | None, typer.Option(help="A custom header, NAME=VALUE; repeatable.")] = None,
    file: _EventFile = None,
    ordered: _Ordered = None,
) -> int | None:
    """Publish an event, or every line of a file, and print the ids.

    Example: kingdom bus publish --stream orders --type OrderPlaced --payload '{"order": 7}'

    Example: kingdom bus publish --app orders:app --file events.ndjson

    JSON: one object {eventId, type, streams, duplicates} per line for each event. `streams` stored the event,
    `duplicates` already had it. An event without a subscriber is not stored; the exit code is then 1.
    """
    kind, _, name = aggregate.partition("/")
    headers = {
        "type": event_type,
        "stream": stream,
        "partitionKey": key,
        "ownerId": owner,
        "aggregateType": kind,
        "aggregateId": name,
        **attributes(attribute or ()),
    }
    at = utc_now() + duration(delay) if delay else None
    application = call.application()
    declared = application or application_for_any_stream(ordered=bool(ordered))
    order_known = application is not None or ordered is not None
    if file is not None:
        if body is not None or event_id:
            raise typer.BadParameter("--payload and --id are for one event: with --file, put them into its lines.")
        return await _publish_file(call, declared, file, headers, at, order_known=order_known)
    if event_type is None:
        raise typer.BadParameter("give --type, or --file with one event per line.")
    given = {"eventId": str(event_id)} if event_id else {}
    wire = {**headers, **given, "payload": payload("{}" if body is None else body)}
    return await _publish_one(call, declared, wire, at, order_known=order_known)


async def _publish_one(
    call: CommandCall, declared: Application, wire: dict[str, Any], at: datetime | None, *, order_known: bool
) -> int | None:
    envelope = _check_routing(Envelope.from_wire(wire), declared, order_known=order_known)
    async with call.bus(declared) as bus:
        async for published in _store(bus, [envelope], at):
            _report(call.output, published)
            return None if published.streams or published.duplicates else exit_code.FAILED
    return None


async def _publish_file(
    call: CommandCall,
    declared: Application,
    file: str,
    headers: dict[str, Any],
    at: datetime | None,
    *,
    order_known: bool,
) -> int | None:
    def read() -> Iterator[Envelope]:
        with opened(file) as lines:
            for envelope in envelopes(lines, headers):
                yield _check_routing(envelope, declared, order_known=order_known)

    # A file is first checked completely, so that nothing is stored if a line is invalid. Standard input can be read
    # only once, so it is not checked first.
    total = None if file == STANDARD_INPUT else sum(1 for _ in read())
    stored = duplicates = unrouted = 0
    async with call.bus(declared) as bus:
        with call.output.progress("Publishing", total) as advance:
            try:
                async for published in _store(bus, read(), at):
                    stored += bool(published.streams)
                    duplicates += bool(published.duplicates)
                    unrouted += not (published.streams or published.duplicates)
                    if call.output.json:
                        call.output.document(published)
                    advance()
            except MalformedEvent as error:
                raise MalformedEvent(f"{error}; {stored} event(s) of earlier lines were stored") from error
    call.output.say(f"Stored {stored} event(s); {duplicates} already existed; {unrouted} without a subscriber.")
    return exit_code.FAILED if unrouted else None


def _check_routing(envelope: Envelope, declared: Application, *, order_known: bool) -> Envelope:
    if envelope.stream is None and not declared.topology.names():
        raise Misconfigured(
            f"the stream of {envelope.type} is unknown: add --stream,"
            " or the application with --app MODULE:OBJECT or KINGDOM_APP"
        )
    if envelope.partition_key is not None and not order_known:
        raise Misconfigured(
            f"it is unknown whether stream {envelope.stream} is ordered: add --ordered or --unordered,"
            " or the application with --app MODULE:OBJECT or KINGDOM_APP"
        )
    return envelope


async def _store(bus: Bus, events: Iterable[Envelope], at: datetime | None) -> AsyncIterator[PublishResult]:
    source = iter(events)
    while batch := list(islice(source, _BATCH_SIZE)):
        already = {(copy.stream.name, copy.envelope.event_id) for copy in await bus.publish(*batch, at=at)}
        for envelope in batch:
            routes = bus.topology.route(envelope)
            known = tuple(name for name in routes if (name, envelope.event_id) in already)
            yield PublishResult(envelope.event_id, envelope.type, tuple(n for n in routes if n not in known), known)


def _report(output: CommandOutput, published: PublishResult) -> None:
    if output.json:
        output.document(published)
    if published.streams:
        output.say(f"{published.event_id} stored in {', '.join(published.streams)}")
    if published.duplicates:
        output.say(f"{published.event_id} already exists in {', '.join(published.duplicates)}: it was not stored again")
    if not (published.streams or published.duplicates):
        output.note(f"{published.event_id} was not stored: no stream subscribes to {published.type}")
