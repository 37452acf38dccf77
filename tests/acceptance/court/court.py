"""A running court as its tests see it: its processes, its stand-ins, and what a person can read from its store."""

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench.court.court_processes import CHANNEL, CourtProcesses, eventually
from kingdom.bus import Bus, LogCursor, LogEntry, Operations, RecordQuery
from kingdom.court.documents import Assignment, ExternalEvent, Message
from kingdom.court.records import ASSIGNMENTS, EVENTS, MESSAGES
from kingdom.workflow.records import each_record
from tests.patience import PATIENCE_SECONDS

_PAGE = 1000
_KINDS = {ExternalEvent: EVENTS, Assignment: ASSIGNMENTS, Message: MESSAGES}
_D = TypeVar("_D", ExternalEvent, Assignment, Message)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Court:
    """A running court, its store, and a person in its Slack channel."""

    processes: CourtProcesses
    bus: Bus
    operations: Operations
    person: str

    async def documents(self, kind: type[_D]) -> list[_D]:
        """Return all events, assignments or messages, in the order of their ids."""
        async with self.bus.transaction() as transaction:
            found = each_record(transaction, RecordQuery(kind=_KINDS[kind].name))
            return [msgspec.convert(record.doc, kind) async for record in found]

    async def document(self, kind: str, record_id: str) -> dict[str, Any] | None:
        """Return the document with an id."""
        async with self.bus.transaction() as transaction:
            record = await transaction.get(kind, record_id)
        return dict(record.doc) if record else None

    async def events(self, **fields: object) -> list[ExternalEvent]:
        """Return the events with these values."""
        return [event for event in await self.documents(ExternalEvent) if _has(event, fields)]

    async def assignments(self, **fields: object) -> list[Assignment]:
        """Return the assignments with these values."""
        return [assignment for assignment in await self.documents(Assignment) if _has(assignment, fields)]

    async def event(self, *, until: str, **fields: object) -> ExternalEvent:
        """Wait for the one event with these values, until it has a status."""

        async def there() -> ExternalEvent | None:
            found = await self.events(**fields)
            return found[0] if len(found) == 1 and found[0].status == until else None

        return await wait(there, f"{fields} {until}")

    async def assignment(self, *, until: str, **fields: object) -> Assignment:
        """Wait for the one assignment with these values, until it has a status."""

        async def there() -> Assignment | None:
            found = await self.assignments(**fields)
            return found[0] if len(found) == 1 and found[0].status == until else None

        return await wait(there, f"{fields} {until}")

    async def log(self, *types: str) -> list[LogEntry]:
        """Return all log entries, or only those of these types."""
        return [entry for entry in await read_log(self.operations) if not types or entry.type in types]

    async def logged_data(self, event_type: str, **data: object) -> list[dict[str, Any]]:
        """Return the data of the internal events of a type that contain these values."""
        found = [dict(entry.data) for entry in await self.log(event_type)]
        return [each for each in found if data.items() <= each.items()]

    async def channel_messages(self) -> list[dict[str, Any]]:
        """Return all messages of the channel in order."""
        state = await self.processes.look("slack", "state")
        channel = next(key for key, each in state["channels"].items() if each["name"] == CHANNEL)
        messages: list[dict[str, Any]] = state["messages"].get(channel, [])
        return messages

    async def thread(self, assignment_id: str) -> list[dict[str, Any]]:
        """Return the thread of an assignment."""
        messages = await self.channel_messages()
        roots = [each["ts"] for each in messages if f" as {assignment_id}." in each["text"] and not _is_reply(each)]
        return [each for each in messages if each["ts"] in roots or each.get("thread_ts") in roots]

    async def thread_with(self, assignment_id: str, words: str) -> list[dict[str, Any]]:
        """Wait for a message in the thread of an assignment."""

        async def there() -> list[dict[str, Any]]:
            thread = await self.thread(assignment_id)
            return thread if any(words in each["text"] for each in thread) else []

        return await wait(there, f"{words!r} in the thread of {assignment_id}")

    def paths(self) -> frozenset[str]:
        """Return every path in the realm."""
        realm = self.processes.realm
        # Unlike rglob, os.walk continues if a directory is removed in the meantime.
        walk = os.walk(realm)
        found = (Path(place, name) for place, folders, files in walk for name in (*folders, *files))
        return frozenset(path.relative_to(realm).as_posix() for path in found)

    async def logs_say(self, role: str, words: str) -> None:
        """Wait until the log of a role contains these words."""

        async def there() -> bool:
            return words in self.processes.log(role)

        await wait(there, f"{role} says {words!r}")


async def wait(ready: Callable[[], Awaitable[T | None]], what: str) -> T:
    """Wait until `ready` returns something, and return it."""
    found: T = await eventually(ready, what, PATIENCE_SECONDS)
    return found


async def read_log(operations: Operations) -> list[LogEntry]:
    """Return everything in the log of a store."""
    entries: list[LogEntry] = []
    cursor = LogCursor()
    while page := await operations.read_log(cursor, _PAGE):
        entries += [logged.entry for logged in page]
        cursor = page[-1].cursor
    return entries


def buttons(message: dict[str, Any]) -> dict[str, str]:
    """Return the actions of the buttons of a message, by their labels."""
    elements = [element for block in message.get("blocks", []) for element in block.get("elements", [])]
    return {each["text"]["text"]: each["action_id"] for each in elements if each["type"] == "button"}


def _has(document: object, fields: dict[str, object]) -> bool:
    return all(_value(document, name) == value for name, value in fields.items())


def _value(document: Any, name: str) -> object:
    return getattr(document, name) if hasattr(document, name) else document.payload.get(name)


def _is_reply(message: dict[str, Any]) -> bool:
    return bool(message.get("thread_ts", message["ts"]) != message["ts"])
