"""The whole catalogue of internal events, how one becomes an entry of the log, and its page of the documentation."""

import sys
from collections.abc import Iterator, Mapping
from datetime import datetime

import msgspec

from kingdom.bus.log import LogEntry
from kingdom.bus.port import Transaction
from kingdom.chronicle.events import InternalEvent
from kingdom.clock import utc_now

CATALOGUE: Mapping[str, type[InternalEvent]] = {event.type: event for event in InternalEvent.__subclasses__()}

_INTRODUCTION = """\
# Internal events

<!-- Written by `python -m kingdom.chronicle.catalogue`; a test keeps it equal. -->

What the system observes of itself, for whoever watches it: they trigger nothing. Each is logged in the transaction that
causes it, so it is there if and only if that happened; what is done to files (`recovery.log_rotated`,
`recovery.files_cleaned`) is logged right after it, so that a crash in between can lose the entry. An entry has `ts`,
`type`, `actor` and `data`; with a store of files the log is `logs/events.log`, one JSON object a line, split by day.
`kingdom bus tail` shows it, wherever it is.
"""


async def chronicle(transaction: Transaction, event: InternalEvent, actor: str) -> None:
    """Log an internal event in the transaction that causes it."""
    await transaction.append(entry(event, actor, utc_now()))


def entry(event: InternalEvent, actor: str, at: datetime) -> LogEntry:
    """Return an internal event as the log keeps it."""
    data = msgspec.to_builtins(event)
    return LogEntry(
        type=event.type,
        actor=actor,
        data=data,
        at=at,
        aggregate_type=event.type.partition(".")[0],
        aggregate_id=data[event.about] if event.about else "",
    )


def read(logged: LogEntry) -> InternalEvent | None:
    """Return the internal event behind an entry; None where it is something else, or of another version."""
    kind = CATALOGUE.get(logged.type)
    try:
        return msgspec.convert(logged.data, kind) if kind else None
    except msgspec.ValidationError:
        return None


def page() -> str:
    """Return the page of the documentation."""
    return "\n".join([_INTRODUCTION, *_tables()])


def _tables() -> Iterator[str]:
    category = ""
    for name, event in CATALOGUE.items():
        if name.partition(".")[0] != category:
            category = name.partition(".")[0]
            yield f"## {category}\n"
            yield "| Type | Actor | What happened | Data |\n| --- | --- | --- | --- |"
        fields = ", ".join(f"`{field.encode_name}`" for field in msgspec.structs.fields(event))
        yield f"| `{name}` | {event.said_by} | {event.__doc__} | {fields} |"
        if name == _last_of(category):
            yield ""


def _last_of(category: str) -> str:
    return [name for name in CATALOGUE if name.partition(".")[0] == category][-1]


if __name__ == "__main__":
    sys.stdout.write(page())
