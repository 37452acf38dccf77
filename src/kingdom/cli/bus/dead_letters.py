"""`kingdom bus dead …` and `kingdom bus redrive`: inspect, retry and discard dead letters."""

import shlex
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Annotated
from uuid import UUID

import msgspec
import typer
from rich.syntax import Syntax

from kingdom.actions.dead_letters import (
    discard_letters,
    find_letter,
    find_letters,
    key_of,
    matches,
    patch_letter,
    without_content,
)
from kingdom.bus.operations import DeadFilter, DeadLetter, Operations
from kingdom.bus.redrive import RedrivePlan, find_dead_letters, redrive_all
from kingdom.cli.framework import exit_code
from kingdom.cli.framework.command import CommandCall, command
from kingdom.cli.framework.inputs import payload
from kingdom.cli.framework.json_result import array, one
from kingdom.cli.framework.output import format_cell
from kingdom.text import printable
from kingdom.views.camel import to_json_object
from kingdom.views.dead_letters import (
    DeadLetterDetails,
    DeadLetterKey,
    DiscardResult,
    ListedDeadLetter,
    RedriveResult,
)

app = typer.Typer()
dead = typer.Typer(no_args_is_help=True, help="List, show, patch and discard dead letters.")
app.add_typer(dead, name="dead")

_Stream = Annotated[str | None, typer.Option("--stream", help="Only dead letters of this stream.")]
_Type = Annotated[str | None, typer.Option("--type", help="Only events of this type.")]
_Code = Annotated[str | None, typer.Option("--code", help="Only dead letters with this error code.")]
_Events = Annotated[list[UUID], typer.Argument(metavar="EVENT...", help="Ids of events.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_StopAfter = Annotated[int, typer.Option(min=0, help="Stop after this many events died again; 0 never stops.")]
# The stream, type and error code that all dead letters of a group have.
_Group = tuple[str, str, str | None]
_LISTED = ("event_id", "stream", "type", "partition_key", "attempt", "error_code", "error_message", "died_at")


@command(dead, "list", result=array(ListedDeadLetter))
async def list_dead(
    call: CommandCall,
    *,
    stream: _Stream = None,
    event_type: _Type = None,
    code: _Code = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 50,
    after: Annotated[int, typer.Option(help="Continue after this position.")] = 0,
) -> None:
    """List dead letters in the order of their publication.

    Example: kingdom bus dead list --stream orders --code malformed

    JSON: an array of {eventId, stream, type, partitionKey, attempt, errorCode, errorMessage, createdAt, diedAt,
    position}; to get the next page, give the last position to --after.
    """
    which = DeadFilter(stream=stream, type=event_type, code=code, after=after)
    async with call.operations(*([stream] if stream else [])) as operations:
        # One more dead letter than requested is read, to know whether there are more.
        letters = await operations.dead_letters(which, limit + 1)
    shown = letters[:limit]
    if call.output.json:
        call.output.document([without_content(letter) for letter in shown])
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
        call.output.say("There are no dead letters that match.")


@command(dead, "show", result=array(DeadLetterDetails))
async def show(
    call: CommandCall, event: Annotated[UUID, typer.Argument(metavar="EVENT")], *, stream: _Stream = None
) -> None:
    """Show a dead letter with its envelope and its history.

    Example: kingdom bus dead show 01932f6e-6b3a-7c10-8d55-0f6f7a3b9c01

    JSON: an array with one object for each stream that has it: the fields of `dead list`, envelope and history.
    """
    async with call.operations() as operations:
        letters = await find_letters(operations, [event], stream)
    if call.output.json:
        call.output.document([to_json_object(letter) for letter in letters])
        return
    for letter in letters:
        call.output.say(
            f"{letter.type} {letter.event_id} in stream {letter.stream}",
            f"It died at {format_cell(letter.died_at)} in attempt {letter.attempt} with {letter.error_code}:",
            f"  {letter.error_message}",
        )
        content = {"envelope": letter.envelope, "history": list(letter.history)}
        text = msgspec.json.format(msgspec.json.encode(content), indent=2).decode()
        call.output.console.print(Syntax(printable(text), "json", background_color="default", word_wrap=True))
        call.output.say(f"Redrive it: kingdom bus redrive {letter.event_id}")


@command(dead, "patch", result=one(DeadLetterKey))
async def patch(
    call: CommandCall,
    event: Annotated[UUID, typer.Argument(metavar="EVENT")],
    *,
    body: Annotated[str, typer.Option("--payload", help="A JSON object, @FILE, or - for standard input.")],
    stream: _Stream = None,
) -> None:
    """Replace the payload of a dead letter. Its history keeps the old payload. Redrive the dead letter afterwards.

    Example: kingdom bus dead patch 01932f6e-6b3a-7c10-8d55-0f6f7a3b9c01 --payload '{"order": 7}'

    JSON: {eventId, stream}.
    """
    fresh = payload(body)
    async with call.operations() as operations:
        letter = await find_letter(operations, event, stream)
        patched = await patch_letter(operations, letter, fresh, actor=call.settings.actor)
    if call.output.json:
        call.output.document(patched)
    call.output.say(f"Patched in stream {patched.stream}. Redrive it: kingdom bus redrive {event}")


@command(dead, "discard", result=one(DiscardResult))
async def discard(
    call: CommandCall,
    events: _Events,
    *,
    reason: Annotated[str, typer.Option(help="The reason, which the archive and the log keep.")],
    stream: _Stream = None,
    yes: _Yes = False,
) -> None:
    """Discard dead letters permanently; keys that they blocked continue.

    Example: kingdom bus dead discard 01932f6e-6b3a-7c10-8d55-0f6f7a3b9c01 --reason "test order"

    JSON: {discarded: [{eventId, stream}]}.
    """
    async with call.operations() as operations:
        letters = await find_letters(operations, events, stream)
        call.output.confirm(f"Discard {len(letters)} dead letter(s) permanently?", yes=yes)
        done = await discard_letters(operations, letters, reason=reason, actor=call.settings.actor)
    if call.output.json:
        call.output.document(DiscardResult(discarded=done))
    call.output.say(f"Discarded {len(done)} of {len(letters)} dead letter(s).")


@command(app, "redrive", result=one(RedriveResult))
async def redrive(  # noqa: PLR0913 - one parameter per option
    call: CommandCall,
    events: Annotated[list[UUID] | None, typer.Argument(metavar="[EVENT...]", help="Ids of events.")] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Redrive all dead letters that match the filters.")] = False,
    stream: _Stream = None,
    event_type: _Type = None,
    code: _Code = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be redriven.")] = False,
    rate: Annotated[float, typer.Option(min=0.01, help="Events per second.")] = 50.0,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many.")] = None,
    stop_after: _StopAfter = 1,
    yes: _Yes = False,
) -> int | None:
    """Retry dead letters: each keeps its event id, its place in the order and its history; its attempts start at zero.

    Example: kingdom bus redrive 01932f6e-6b3a-7c10-8d55-0f6f7a3b9c01

    Example: kingdom bus redrive --all --stream orders --code unavailable --rate 10 --dry-run

    JSON: {dryRun, matching, redriven, diedAgain, stopped, events: [{eventId, stream}]}. The exit code is 1 if
    the command stopped because events died again.
    """
    if everything == bool(events):
        raise typer.BadParameter("name events or add --all, but not both.")
    which = DeadFilter(stream=stream, type=event_type, code=code)
    async with call.operations(*([stream] if stream else [])) as operations:
        found = await find_letters(operations, events or (), stream)
        named = [each for each in found if matches(each, which)][:limit]

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
        result = RedriveResult(dry_run=dry_run, matching=groups.total())
        if groups and not dry_run:
            if everything:
                call.output.confirm(f"Redrive {result.matching} dead letter(s)?", yes=yes)
            plan = RedrivePlan(per_second=rate, stop_after_failures=stop_after or None)
            # No dead letter after the last one that was counted before the confirmation is redriven.
            result = await _redrive_slowly(call, operations, letters(last), plan, result.matching)
    _report(call, result, groups)
    return exit_code.FAILED if result.stopped else None


async def _redrive_slowly(
    call: CommandCall, operations: Operations, letters: AsyncIterator[DeadLetter], plan: RedrivePlan, total: int
) -> RedriveResult:
    events: list[DeadLetterKey] = []
    died_again, stopped = 0, False
    with call.output.progress("Redriving", total) as advance:
        async for step in redrive_all(operations, letters, plan, actor=call.settings.actor):
            died_again = step.died_again
            if step.letter is None:
                stopped = True
            else:
                events.append(key_of(step.letter))
                advance()
    return RedriveResult(
        matching=total, redriven=len(events), died_again=died_again, stopped=stopped, events=tuple(events)
    )


def _report(call: CommandCall, result: RedriveResult, groups: Mapping[_Group, int]) -> None:
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
            " Fix the cause first, then continue; --stop-after N lets N events die again before it stops."
        )
    else:
        again = f"; {result.died_again} died again" if result.died_again else ""
        call.output.say(f"Redrove {len(result.events)} of {result.matching} dead letter(s){again}.")
