"""The bus: its streams, its dead letters with their history, and what prevents the cleanup of the database."""

from urllib.parse import urlencode

from aiohttp import web

from kingdom.actions.dead_letters import find_letters, no_longer_dead
from kingdom.bus.operations import COUNT_LIMIT, DeadFilter, DeadLetter, StreamStats
from kingdom.bus.throughput import THROUGHPUT_QUERY, read_throughput
from kingdom.web.api.bus import LettersQuery, StreamQuery, bus_event_id, letters_after
from kingdom.web.pages.frame import html_response, open_page
from kingdom.web.pages.wording import indented
from kingdom.web.route import ApiCall

# A family of streams is declared with a placeholder in its name.
_PLACEHOLDER = "{"
# Rates from this number on are shown without a fraction.
_WHOLE_RATE = 10


def count_up_to(number: int) -> str:
    """Format a count of the bus. Counting stops at a limit."""
    return f"{COUNT_LIMIT:,}+" if number >= COUNT_LIMIT else f"{number:,}"


async def show_bus(call: ApiCall) -> web.Response:
    """Show every stream, and the dead letters."""
    query: LettersQuery = call.query
    operations = call.context.operations
    cursor = await operations.log_end()
    known = {row.stream: row for row in await operations.stats()}
    which = DeadFilter(stream=query.stream, type=query.type, code=query.code, after=letters_after(query))
    letters = await operations.dead_letters(which, query.limit + 1)
    async with open_page(call, "/bus", [THROUGHPUT_QUERY], cursor=cursor) as page:
        throughput = {each.stream: each for each in await read_throughput(page.transaction, page.now)}
        names = sorted(
            {*known, *throughput, *(name for name in call.context.bus.topology.names() if _PLACEHOLDER not in name)}
        )
        streams = [known.get(name) or _empty(name) for name in names]
        filters = {name: value for name in ("stream", "type", "code") if (value := getattr(query, name))}
        return page.render(
            "bus.html",
            # Streams with dead letters come first, then paused streams, then streams with pending events.
            streams=sorted(streams, key=lambda row: (not row.dead, not row.paused, not row.pending, row.stream)),
            letters=letters[: query.limit],
            following=str(letters[query.limit - 1].position) if len(letters) > query.limit else None,
            filters=filters,
            address=f"/bus?{urlencode(filters)}&",
            query=query,
            count_up_to=count_up_to,
            throughput=throughput,
            rate=_rate,
        )


async def show_pins(call: ApiCall) -> web.Response:
    """Return what prevents the cleanup of the database, as an HTML fragment."""
    return html_response("pins.html", pins=await call.context.operations.pins())


async def show_dead_letter(call: ApiCall) -> web.Response:
    """Show a dead letter with its content and its history, for each stream that has it."""
    query: StreamQuery = call.query
    event = bus_event_id(call)
    cursor = await call.context.operations.log_end()
    letters = await find_letters(call.context.operations, [event], query.stream)
    if not letters:
        raise no_longer_dead(event)
    async with open_page(call, "/bus", cursor=cursor) as page:
        return page.render("dead-letter.html", letters=letters, event=event, payload_of=_payload_of, indented=indented)


def _rate(per_minute: float) -> str:
    return f"{per_minute:,.0f}" if per_minute >= _WHOLE_RATE else f"{per_minute:.1f}"


def _empty(name: str) -> StreamStats:
    return StreamStats(stream=name, pending=0, processing=0, dead=0, oldest_pending_seconds=0, paused=None)


def _payload_of(letter: DeadLetter) -> str:
    return indented(letter.envelope.get("payload", {}))
