"""The catalog of internal events, their conversion to log entries, and the page docs/internal-events.md."""

import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial

import msgspec
import structlog

from kingdom.bus.log import LogEntry
from kingdom.bus.port import Bus, Transaction
from kingdom.chronicle.events import FilesCleaned, InternalEvent
from kingdom.clock import utc_now

CATALOG: Mapping[str, type[InternalEvent]] = {event.type: event for event in InternalEvent.__subclasses__()}
_log = structlog.get_logger("kingdom.court")

_INTRODUCTION = """\
# Internal events

<!-- Written by `python -m kingdom.chronicle.catalog`; a test checks that it is current. -->

The system logs these observations of itself. They trigger nothing. Each entry is logged in the transaction that
causes it, so the entry exists if and only if the change happened. There are two exceptions, `recovery.log_rotated` and
`recovery.files_cleaned`: they are logged just after the rotation or the removal, so a crash in between can lose the
entry. An entry has `ts`, `type`, `actor` and `data`. With a file store the log is `logs/events.log`, one JSON object
per line; it is rotated every day and at 100 MB. `kingdom bus tail` shows the log of any store.
"""


async def log_event(transaction: Transaction, event: InternalEvent, actor: str) -> None:
    """Log an internal event in the transaction that causes it. After the commit, write its line to the text logs."""
    entry = to_log_entry(event, actor, utc_now())
    await transaction.append(entry)
    if event.text_line:
        facts = {name: value for name, value in entry.data.items() if value != entry.aggregate_id}
        transaction.after_commit(partial(_log.info, f"{event.text_line}: {entry.aggregate_id}", **facts))


async def log_clean_up(bus: Bus, actor: str, removed: int) -> None:
    """Log how many expired items were removed, in a transaction of its own."""
    async with bus.transaction() as transaction:
        await log_event(transaction, FilesCleaned(deleted_count=removed), actor)


def to_log_entry(event: InternalEvent, actor: str, at: datetime) -> LogEntry:
    """Return the log entry of an internal event."""
    return LogEntry(
        type=event.type,
        actor=actor,
        data=msgspec.to_builtins(event),
        at=at,
        aggregate_type=event.type.partition(".")[0],
        aggregate_id=getattr(event, event.subject_field) if event.subject_field else "",
    )


def read_log_entry(entry: LogEntry) -> InternalEvent | None:
    """Return the internal event of a log entry. Return None for another kind of entry and for an unknown version."""
    kind = CATALOG.get(entry.type)
    try:
        return msgspec.convert(entry.data, kind) if kind else None
    except msgspec.ValidationError:
        return None


def page() -> str:
    """Return the documentation page."""
    return "\n".join([_INTRODUCTION, *_tables()])


def _tables() -> Iterator[str]:
    category = ""
    for name, event in CATALOG.items():
        if name.partition(".")[0] != category:
            category = name.partition(".")[0]
            yield f"## {category}\n"
            yield "| Type | Actor | What happened | Data |\n| --- | --- | --- | --- |"
        fields = ", ".join(f"`{field.encode_name}`" for field in msgspec.structs.fields(event))
        yield f"| `{name}` | {event.actor} | {event.__doc__} | {fields} |"
        if name == _last_type(category):
            yield ""


def _last_type(category: str) -> str:
    return [name for name in CATALOG if name.partition(".")[0] == category][-1]


if __name__ == "__main__":
    sys.stdout.write(page())
