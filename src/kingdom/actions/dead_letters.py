"""Find, patch and discard dead letters."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from kingdom.bus.operations import DeadFilter, DeadLetter, Operations
from kingdom.errors import Misconfigured, NotFound
from kingdom.views.camel import to_json_object
from kingdom.views.dead_letters import CONTENT_FIELDS, DeadLetterKey


async def find_letters(operations: Operations, events: Sequence[UUID], stream: str | None) -> list[DeadLetter]:
    """Return the dead letters of events. Raise NotFound if an event has none.

    Letters that another operator redrives or discards at the same time are left out.
    """
    found: list[DeadLetter] = []
    for event in events:
        situations = await operations.situations(event)
        where = [each.stream for each in situations if each.status == "DEAD" and stream in (None, each.stream)]
        if not where:
            known = ", ".join(f"{each.status} in {each.stream}" for each in situations)
            raise NotFound(
                f"event {event} is not a dead letter{f' of {stream}' if stream else ''}: "
                + (
                    f"it is {known}; see `kingdom bus why {event}`"
                    if known
                    else "there is no such event; `kingdom bus dead list` shows all dead letters"
                )
            )
        for name in where:
            found += await operations.dead_letters(DeadFilter(stream=name, event_id=event), 1)
    return found


async def find_letter(operations: Operations, event: UUID, stream: str | None) -> DeadLetter:
    """Return the only dead letter of an event. Raise NotFound if it has none."""
    letters = await find_letters(operations, [event], stream)
    if not letters:
        raise no_longer_dead(event)
    if len(letters) > 1:
        names = ", ".join(letter.stream for letter in letters)
        raise Misconfigured(f"event {event} is dead in {names}: choose one with --stream")
    return letters[0]


def no_longer_dead(event: UUID) -> NotFound:
    """Return the error for an event whose dead letters were redriven or discarded while they were read."""
    return NotFound(f"event {event} is no longer a dead letter: `kingdom bus dead list` shows all")


async def patch_letter(
    operations: Operations, letter: DeadLetter, payload: Mapping[str, Any], *, actor: str
) -> DeadLetterKey:
    """Replace the payload of a dead letter."""
    await operations.patch(letter.event_id, letter.stream, payload, actor=actor)
    return key_of(letter)


async def discard_letters(
    operations: Operations, letters: Sequence[DeadLetter], *, reason: str, actor: str
) -> list[DeadLetterKey]:
    """Discard dead letters, and return those that were still dead."""
    return [key_of(each) for each in letters if await operations.discard([each.position], reason=reason, actor=actor)]


def matches(letter: DeadLetter, which: DeadFilter) -> bool:
    """Return whether a dead letter has the type and the code of a filter."""
    return which.type in (None, letter.type) and which.code in (None, letter.error_code)


def key_of(letter: DeadLetter) -> DeadLetterKey:
    """Return the key of a dead letter."""
    return DeadLetterKey(event_id=letter.event_id, stream=letter.stream)


def without_content(letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as lists show it."""
    return {name: value for name, value in to_json_object(letter).items() if name not in CONTENT_FIELDS}
