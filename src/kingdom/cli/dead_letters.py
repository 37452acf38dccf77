"""`kingdom bus dead …` and `kingdom bus redrive`: what could not be handled, and what becomes of it."""

import shlex
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer
from rich.syntax import Syntax

from kingdom.bus.operations import DeadFilter, DeadLetter, Operations
from kingdom.bus.redrive import RedrivePlan, find_dead_letters, redrive_all
from kingdom.cli import exit_code
from kingdom.cli.command import Call, command
from kingdom.cli.inputs import payload
from kingdom.cli.output import shape, words
from kingdom.cli.shape import array, camel, one
from kingdom.errors import Misconfigured, NotFound
from kingdom.text import printable

app = typer.Typer()
dead = typer.Typer(no_args_is_help=True, help="Dead letters: list, show, patch, discard.")
app.add_typer(dead, name="dead")

_Stream = Annotated[str | None, typer.Option("--stream", help="Only of this stream.")]
_Type = Annotated[str | None, typer.Option("--type", help="Only of this type of event.")]
_Code = Annotated[str | None, typer.Option("--code", help="Only with this error code.")]
_Events = Annotated[list[UUID], typer.Argument(metavar="EVENT...", help="Ids of events.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
# The stream, the type and the error code that dead letters share.
_Group = tuple[str, str, str | None]
_CONTENT = ("envelope", "history")
_LISTED = ("event_id", "stream", "type", "partition_key", "attempt", "error_code", "error_message", "died_at")


class NamedLetter(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The id of a dead letter: its event, and the stream it is dead in."""

    event_id: UUID
    stream: str


class Discarded(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The dead letters that were ended for good."""

    discarded: list[NamedLetter]


class Redriven(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a redrive did: of those `matching`, `events` are the `redriven` ones; `stopped` if too many died again."""

    dry_run: bool = False
    matching: int
    redriven: int = 0
    died_again: int = 0
    stopped: bool = False
    events: tuple[NamedLetter, ...] = ()


@command(dead, "list", answer=array(camel(DeadLetter, "ListedDeadLetter", without=_CONTENT)))
async def list_dead(
    call: Call,
    *,
    stream: _Stream = None,
    event_type: _Type = None,
    code: _Code = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 50,
    after: Annotated[int, typer.Option(help="Go on behind this position.")] = 0,
) -> None:
    """List dead letters in the order in which they were published.

    Example: kingdom bus dead list --stream orders --code malformed

    JSON: an array of {eventId, stream, type, partitionKey, attempt, errorCode, errorMessage, createdAt, diedAt,
    position}; the next page begins with --after the last position.
    """
    which = DeadFilter(stream=stream, type=event_type, code=code, after=after)
    async with call.operations(*([stream] if stream else [])) as operations:
        # One more than asked for tells whether there are more.
        letters = await operations.dead_letters(which, limit + 1)
    shown = letters[:limit]
    if call.output.json:
        call.output.document([_without_content(letter) for letter in shown])
    elif shown:
        call.output.table(
            ("event", "stream", "type", "key", "attempts", "code", "error", "died"),
            [[getattr(letter, name) for name in _LISTED] for letter in shown],
        )
        if len(letters) > limit:
            given = {"stream": stream, "type": event_type, "code": code, "limit": limit, "after": shown[-1].position}
            options = [word for name, value in given.items() if value for word in (f"--{name}", str(value))]
            call.output.say(f"There are more: kingdom bus dead list {shlex.join(options)}")
    else:
        call.output.say("There are no such dead letters.")


@command(dead, "show", answer=array(camel(DeadLetter)))
async def show(call: Call, event: Annotated[UUID, typer.Argument(metavar="EVENT")], *, stream: _Stream = None) -> None:
    """Show a dead letter with its envelope and its history.

    Example: kingdom bus dead show 01932f6e-6b3a-7c10-8d55-0f6f7a3b9c01

    JSON: an array, one object for each stream it is dead in: those of `dead list`, and envelope and history.
    """
    async with call.operations() as operations:
        letters = await _letters(operations, [event], stream)
    if call.output.json:
        call.output.document([shape(letter) for letter in letters])
        return
    for letter in letters:
        call.output.say(
            f"{letter.type} {letter.event_id} in stream {letter.stream}",
            f"It died at {words(letter.died_at)} in attempt {letter.attempt}, of {letter.error_code}:",
            f"  {letter.error_message}",
        )
        content = {"envelope": letter.envelope, "history": list(letter.history)}
        text = msgspec.json.format(msgspec.json.encode(content), indent=2).decode()
        call.output.console.print(Syntax(printable(text), "json", background_color="default", word_wrap=True))
        call.output.say(f"Redrive it: kingdom bus redrive {letter.event_id}")


@command(dead, "patch", answer=one(NamedLetter))
async def patch(
    call: Call,
    event: Annotated[UUID, typer.Argument(metavar="EVENT")],
    *,
    body: Annotated[str, typer.Option("--payload", help="A JSON object, @FILE, or - for standard input.")],
    stream: _Stream = None,
) -> None:
    """Replace the payload of a dead letter; the old one is kept in its history. Redrive it afterwards.

    Example: kingdom bus dead patch 01932f6e-6b3a-7c10-8d55-0f6f7a3b9c01 --payload '{"order": 7}'

    JSON: {eventId, stream}.
    """
    fresh = payload(body)
    async with call.operations() as operations:
        letters = await _letters(operations, [event], stream)
        if len(letters) > 1:
            names = ", ".join(letter.stream for letter in letters)
            raise Misconfigured(f"event {event} is dead in {names}: say which with --stream")
        await operations.patch(event, letters[0].stream, fresh, actor=call.settings.actor)
    if call.output.json:
        call.output.document(_named(letters[0]))
    call.output.say(f"Patched in stream {letters[0].stream}. Redrive it: kingdom bus redrive {event}")


@command(dead, "discard", answer=one(Discarded))
async def discard(
    call: Call,
    events: _Events,
    *,
    reason: Annotated[str, typer.Option(help="Why; it stays in the archive and the log.")],
    stream: _Stream = None,
    yes: _Yes = False,
) -> None:
    """End dead letters for good; a key that one of them blocked goes on.

    Example: kingdom bus dead discard 01932f6e-6b3a-7c10-8d55-0f6f7a3b9c01 --reason "test order"

    JSON: {discarded: [{eventId, stream}]}.
    """
    async with call.operations() as operations:
        letters = await _letters(operations, events, stream)
        call.output.confirm(f"Discard {len(letters)} dead letter(s) for good?", yes=yes)
        done = [
            _named(each)
            for each in letters
            if await operations.discard([each.position], reason=reason, actor=call.settings.actor)
        ]
    if call.output.json:
        call.output.document(Discarded(discarded=done))
    call.output.say(f"Discarded {len(done)} of {len(letters)} dead letter(s).")


@command(app, "redrive", answer=one(Redriven))
async def redrive(  # noqa: PLR0913 - one parameter per option
    call: Call,
    events: Annotated[list[UUID] | None, typer.Argument(metavar="[EVENT...]", help="Ids of events.")] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All that match the filters.")] = False,
    stream: _Stream = None,
    event_type: _Type = None,
    code: _Code = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be redriven.")] = False,
    rate: Annotated[float, typer.Option(min=0.01, help="How many a second.")] = 50.0,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many.")] = None,
    stop_after: Annotated[int, typer.Option(min=0, help="Stop when so many died again; 0 never stops.")] = 1,
    yes: _Yes = False,
) -> int | None:
    """Start a new round for dead letters: same event, same place in its line, attempts from zero, history kept.

    Example: kingdom bus redrive 01932f6e-6b3a-7c10-8d55-0f6f7a3b9c01

    Example: kingdom bus redrive --all --stream orders --code unavailable --rate 10 --dry-run

    JSON: {dryRun, matching, redriven, diedAgain, stopped, events: [{eventId, stream}]}. The exit code is 1 if it
    stopped because events died again.
    """
    if everything == bool(events):
        raise typer.BadParameter("name events, or say --all.")
    which = DeadFilter(stream=stream, type=event_type, code=code)
    async with call.operations(*([stream] if stream else [])) as operations:
        named = [each for each in await _letters(operations, events or (), stream) if _fits(each, which)][:limit]

        async def letters(last: int | None = None) -> AsyncIterator[DeadLetter]:
            for each in named:
                yield each
            if everything:
                async for each in find_dead_letters(operations, which, limit, last):
                    yield each

        groups, last = Counter[_Group](), 0
        async for letter in letters():
            groups[letter.stream, letter.type, letter.error_code] += 1
            last = letter.position
        result = Redriven(dry_run=dry_run, matching=groups.total())
        if groups and not dry_run:
            if everything:
                call.output.confirm(f"Redrive {result.matching} dead letter(s)?", yes=yes)
            plan = RedrivePlan(per_second=rate, stop_after_failures=stop_after or None)
            # What was published since is not what the person has agreed to.
            result = await _redrive_slowly(call, operations, letters(last), plan, result.matching)
    _report(call, result, groups)
    return exit_code.FAILED if result.stopped else None


async def _redrive_slowly(
    call: Call, operations: Operations, letters: AsyncIterator[DeadLetter], plan: RedrivePlan, total: int
) -> Redriven:
    events: list[NamedLetter] = []
    died_again, stopped = 0, False
    with call.output.progress("Redriving", total) as advance:
        async for step in redrive_all(operations, letters, plan, actor=call.settings.actor):
            died_again = step.died_again
            if step.letter is None:
                stopped = True
            else:
                events.append(_named(step.letter))
                advance()
    return Redriven(matching=total, redriven=len(events), died_again=died_again, stopped=stopped, events=tuple(events))


def _report(call: Call, result: Redriven, groups: Mapping[_Group, int]) -> None:
    if call.output.json:
        call.output.document(result)
    elif result.dry_run:
        call.output.table(
            ("stream", "type", "code", "dead letters"), [(*group, count) for group, count in groups.items()]
        )
        call.output.say(f"{result.matching} dead letter(s) would be redriven.")
    elif result.stopped:
        call.output.note(
            f"Stopped after {len(result.events)} of {result.matching}: {result.died_again} died again."
            " Mend the cause first, then go on; --stop-after allows more."
        )
    else:
        again = f"; {result.died_again} died again" if result.died_again else ""
        call.output.say(f"Redriven {len(result.events)} of {result.matching} dead letter(s){again}.")


async def _letters(operations: Operations, events: Sequence[UUID], stream: str | None) -> list[DeadLetter]:
    """Return the dead letters of these events; each must have one."""
    found: list[DeadLetter] = []
    for event in events:
        situations = await operations.situations(event)
        where = [each.stream for each in situations if each.status == "DEAD" and stream in (None, each.stream)]
        if not where:
            known = ", ".join(f"{each.status} in {each.stream}" for each in situations)
            raise NotFound(
                f"event {event} is no dead letter{f' of {stream}' if stream else ''}: "
                + (
                    f"it is {known}; see `kingdom bus why {event}`"
                    if known
                    else "it is not known here; `kingdom bus dead list` shows those there are"
                )
            )
        for name in where:
            found += await operations.dead_letters(DeadFilter(stream=name, event_id=event), 1)
    return found


def _fits(letter: DeadLetter, which: DeadFilter) -> bool:
    return which.type in (None, letter.type) and which.code in (None, letter.error_code)


def _named(letter: DeadLetter) -> NamedLetter:
    return NamedLetter(event_id=letter.event_id, stream=letter.stream)


def _without_content(letter: DeadLetter) -> dict[str, Any]:
    return {name: value for name, value in shape(letter).items() if name not in _CONTENT}
