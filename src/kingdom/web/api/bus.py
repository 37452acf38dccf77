"""The event bus: streams, events and dead letters."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from kingdom.access.acts import act_in_steps
from kingdom.actions.dead_letters import (
    discard_letters,
    find_letter,
    find_letters,
    key_of,
    matches,
    patch_letter,
    without_content,
)
from kingdom.bus.log import LogCursor
from kingdom.bus.operations import STREAM_PAUSED, STREAM_RESUMED, DeadFilter, DeadLetter
from kingdom.bus.redrive import RedrivePlan, redrive_all
from kingdom.bus.throughput import read_throughput
from kingdom.bus.why import why
from kingdom.errors import MalformedRequest, NotFound, Permanent
from kingdom.views.bus import PauseResult, ResumeResult
from kingdom.views.camel import to_json_object
from kingdom.views.dead_letters import DeadLetterKey, DiscardResult, RedriveResult
from kingdom.web.route import ApiCall, Page, PageQuery, Words, part_of

_STREAM, _LETTER = "stream", "dead-letter"
_MAX_POSITION = 2**63 - 1
# One request redrives at most this many dead letters, so that it ends in a few seconds.
_REDRIVE_MAX = 100
# How much of the log is searched for an act that was interrupted.
_PAGE_ENTRIES, _PAGES_MAX = 500, 20


class LettersQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Which dead letters to list."""

    stream: str | None = None
    type: str | None = None
    code: str | None = None


class StreamQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stream of an event, needed if several streams have the event."""

    stream: str | None = None


class PauseStream(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a stream is paused."""

    reason: Words


class PatchLetter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new payload of a dead letter."""

    payload: dict[str, Any]
    stream: str | None = None


class DiscardLetter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a dead letter is discarded."""

    reason: Words
    stream: str | None = None


class RedriveLetters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Which dead letters to redrive: `events`, or with `everything` all; of these, only those that match the filters.

    With `stopAfter` 0, redriving does not stop when events die again.
    """

    events: Annotated[tuple[UUID, ...], Meta(max_length=_REDRIVE_MAX)] = ()
    everything: bool = False
    stream: str | None = None
    type: str | None = None
    code: str | None = None
    dry_run: bool = False
    rate: Annotated[float, Meta(ge=1, le=1000)] = 50.0
    limit: Annotated[int, Meta(ge=1, le=_REDRIVE_MAX)] = _REDRIVE_MAX
    stop_after: Annotated[int, Meta(ge=0)] = 1


class _PlannedLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter for which an act was accepted. If the event has died again since, the act does not apply."""

    event_id: UUID
    stream: str
    died_at: datetime


async def list_streams(call: ApiCall) -> Page[Any]:
    """List every stream that has open or dead events, or is paused."""
    rows = [to_json_object(row) for row in await call.context.operations.stats()]
    return part_of(rows, lambda row: str(row["stream"]), call.query)


async def list_throughput(call: ApiCall) -> Page[Any]:
    """List how many events each stream has handled in each minute of the last hour."""
    async with call.context.bus.transaction() as transaction:
        found = await read_throughput(transaction, call.context.clock())
    return part_of([to_json_object(each) for each in found], lambda each: str(each["stream"]), call.query)


async def list_pins(call: ApiCall) -> Page[Any]:
    """List what prevents the database from removing old row versions."""
    pins = [to_json_object(pin) for pin in await call.context.operations.pins()]
    return part_of(pins, lambda pin: f"{pin['what']} {pin['detail']}", call.query)


async def show_bus_event(call: ApiCall) -> Page[Any]:
    """Say why an event is not running, for each stream that has or had it."""
    event = bus_event_id(call)
    situations = await call.context.operations.situations(event)
    if not situations:
        raise NotFound(f"there is no event {event}: it was never published, or it is no longer in the archive")
    return Page(items=[{"why": why(each), **to_json_object(each)} for each in situations])


async def list_dead_letters(call: ApiCall) -> Page[Any]:
    """List dead letters in the order of their publication."""
    query: LettersQuery = call.query
    which = DeadFilter(stream=query.stream, type=query.type, code=query.code, after=letters_after(query))
    letters = await call.context.operations.dead_letters(which, query.limit + 1)
    shown = letters[: query.limit]
    following = str(shown[-1].position) if len(letters) > query.limit else None
    return Page(items=[without_content(letter) for letter in shown], next=following)


def letters_after(query: LettersQuery) -> int:
    """Return the position after which a list of dead letters continues."""
    if not (query.after or "0").isdecimal() or int(query.after or 0) > _MAX_POSITION:
        raise MalformedRequest(f"{query.after!r} is not a cursor: use `next` of the previous page")
    return int(query.after or 0)


async def show_dead_letter(call: ApiCall) -> Page[Any]:
    """Show a dead letter with its envelope and its history, for each stream that has it."""
    letters = await find_letters(call.context.operations, [bus_event_id(call)], call.query.stream)
    return Page(items=[to_json_object(letter) for letter in letters])


async def post_stream_pause(call: ApiCall) -> Any:
    """Pause a stream for all workers; running handlers finish."""
    call.visitor.require_general("")
    stream, reason, actor = call.path["name"], call.body.reason, call.visitor.actor
    call.context.bus.topology.stream(stream)

    async def perform(accepted_at: Any) -> PauseResult:
        if not await _has_happened(call, accepted_at, STREAM_PAUSED, stream):
            await call.context.operations.pause(stream, reason=reason, actor=actor)
        return PauseResult(stream=stream, reason=reason, actor=actor)

    return await act_in_steps(call.context.bus, call.act("pause", stream, _STREAM), _log_end(call), perform)


async def post_stream_resume(call: ApiCall) -> Any:
    """Resume a paused stream."""
    call.visitor.require_general("")
    stream = call.path["name"]
    call.context.bus.topology.stream(stream)

    async def perform(accepted_at: Any) -> ResumeResult:
        was_paused = await _has_happened(call, accepted_at, STREAM_RESUMED, stream)
        if not was_paused:
            was_paused = await call.context.operations.resume(stream, actor=call.visitor.actor)
        return ResumeResult(stream=stream, was_paused=was_paused)

    return await act_in_steps(call.context.bus, call.act("resume", stream, _STREAM), _log_end(call), perform)


async def post_dead_letter_patch(call: ApiCall) -> Any:
    """Replace the payload of a dead letter. Its history keeps the old payload. Redrive the dead letter afterwards."""
    call.visitor.require_general("")
    event, given = bus_event_id(call), call.body

    async def plan() -> _PlannedLetter:
        return _planned(await find_letter(call.context.operations, event, given.stream))

    async def perform(planned: Any) -> DeadLetterKey:
        accepted = msgspec.convert(planned, _PlannedLetter)
        for letter in await _still_dead(call, [accepted]):
            if letter.envelope.get("payload") != given.payload:
                await patch_letter(call.context.operations, letter, given.payload, actor=call.visitor.actor)
        return DeadLetterKey(event_id=accepted.event_id, stream=accepted.stream)

    return await act_in_steps(call.context.bus, call.act("patch", str(event), _LETTER), plan, perform)


async def post_dead_letter_discard(call: ApiCall) -> Any:
    """Discard a dead letter permanently; keys that it blocked continue."""
    call.visitor.require_general("")
    event, given, actor = bus_event_id(call), call.body, call.visitor.actor

    async def plan() -> list[_PlannedLetter]:
        return [_planned(each) for each in await find_letters(call.context.operations, [event], given.stream)]

    async def perform(planned: Any) -> DiscardResult:
        accepted = msgspec.convert(planned, list[_PlannedLetter])
        dead = await _still_dead(call, accepted)
        await discard_letters(call.context.operations, dead, reason=given.reason, actor=actor)
        return DiscardResult(discarded=[DeadLetterKey(event_id=each.event_id, stream=each.stream) for each in accepted])

    return await act_in_steps(call.context.bus, call.act("discard", str(event), _LETTER), plan, perform)


async def post_redrive(call: ApiCall) -> Any:
    """Retry dead letters: each keeps its event, its place in the order and its history; its attempts start at zero."""
    call.visitor.require_general("")
    given: RedriveLetters = call.body
    if given.everything == bool(given.events):
        raise MalformedRequest("name events, or set everything")
    operations, actor = call.context.operations, call.visitor.actor

    async def find() -> list[DeadLetter]:
        which = DeadFilter(stream=given.stream, type=given.type, code=given.code)
        if given.everything:
            return await operations.dead_letters(which, given.limit)
        found = await find_letters(operations, given.events, given.stream)
        return [each for each in found if matches(each, which)][: given.limit]

    async def plan() -> list[_PlannedLetter]:
        return [_planned(each) for each in await find()]

    async def perform(planned: Any) -> RedriveResult:
        accepted = msgspec.convert(planned, list[_PlannedLetter])
        dead = await _still_dead(call, accepted)
        pace = RedrivePlan(per_second=given.rate, stop_after_failures=given.stop_after or None)
        events, died_again, stopped = [], 0, False
        async for step in redrive_all(operations, _each(dead), pace, actor=actor):
            died_again, stopped = step.died_again, step.letter is None
            if step.letter:
                events.append(key_of(step.letter))
        # An accepted letter that is not in `dead` counts as redriven by an interrupted attempt of this act.
        earlier = len(accepted) - len(dead)
        return RedriveResult(
            matching=len(accepted),
            redriven=len(events) + earlier,
            died_again=died_again,
            stopped=stopped,
            events=tuple(events),
        )

    if given.dry_run:
        return RedriveResult(dry_run=True, matching=len(await find()))
    target = str(given.events[0]) if len(given.events) == 1 else given.stream or "dead letters"
    return await act_in_steps(call.context.bus, call.act("redrive", target, _LETTER), plan, perform)


def _log_end(call: ApiCall) -> Callable[[], Awaitable[str]]:
    """Return a function that plans an act as the end of the log: later entries show whether the act happened."""

    async def plan() -> str:
        return str(await call.context.operations.log_end())

    return plan


async def _has_happened(call: ApiCall, accepted_at: str, entry_type: str, stream: str) -> bool:
    """Return whether an interrupted attempt of an act has changed the stream already."""
    after = LogCursor.parse(accepted_at)
    for _ in range(_PAGES_MAX):
        page = await call.context.operations.read_log(after, _PAGE_ENTRIES)
        for entry in (logged.entry for logged in page):
            if (entry.type, entry.actor, entry.data.get("stream")) == (entry_type, call.visitor.actor, stream):
                return True
        if len(page) < _PAGE_ENTRIES:
            return False
        after = page[-1].cursor
    raise Permanent("this act was interrupted long ago: look at the stream, and send the act with a new key")


async def _each(letters: list[DeadLetter]) -> AsyncIterator[DeadLetter]:
    for letter in letters:
        yield letter


async def _still_dead(call: ApiCall, planned: list[_PlannedLetter]) -> list[DeadLetter]:
    """Return the planned letters that have been dead since the act was accepted."""
    found = []
    for each in planned:
        which = DeadFilter(stream=each.stream, event_id=each.event_id)
        letters = await call.context.operations.dead_letters(which, 1)
        found += [letter for letter in letters if letter.died_at == each.died_at]
    return found


def _planned(letter: DeadLetter) -> _PlannedLetter:
    return _PlannedLetter(event_id=letter.event_id, stream=letter.stream, died_at=letter.died_at)


def bus_event_id(call: ApiCall) -> UUID:
    """Return the id of an event in the path of a request."""
    try:
        return UUID(call.path["id"])
    except ValueError as error:
        raise NotFound(f"{call.path['id']!r} is not the id of an event of the bus, which is a UUID") from error
