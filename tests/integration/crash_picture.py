"""The content of a store without times and numbers that differ between runs, and its inconsistencies."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from kingdom.backends.files.journal.entry import EventRow
from kingdom.backends.files.store import Store
from kingdom.backends.files.transaction_plan import TransactionPlan
from kingdom.backends.files.tree.layout import STATUS_DIRECTORIES
from kingdom.backends.files.tree.log import read_log
from kingdom.bus.log import LogCursor
from kingdom.errors import MalformedEvent

Picture = dict[str, Any]


def picture_of(store: Store) -> Picture:
    """Return the content of the index and the files of an open store."""
    with store.exclusive() as plan:
        streams = store.stream_names()
        names = {r.position: r.event_id for name in streams for r in plan.events.stream(name).rows.values()}
        leases = plan.events.leases.values()
        return {
            "events": {name: _events(store, plan, name) for name in streams if plan.events.stream(name).rows},
            "ended": {name: ended for name in streams if (ended := _ended(store, name))},
            "leases": sorted(
                (lease.worker, lease.stream, _named(names, lease.positions), _named(names, lease.cancelled))
                for lease in leases
            ),
            "records": {
                f"{kind}/{header.id}": (
                    header.version,
                    header.state,
                    header.index_values,
                    _document(store, kind, header.id),
                )
                for kind in store.kinds
                for header in store.records.headers(kind)
            },
            "log": [
                (each.cursor.sequence, each.entry.type, each.entry.actor, str(each.entry.data))
                for each in read_log(store.layout, LogCursor(), sys.maxsize)
            ],
            "log ends at": plan.events.log_sequence,
            "keys": _keys(store),
            "pauses": sorted((pause.stream, pause.reason, pause.actor) for pause in plan.events.pauses.values()),
        }


def inconsistencies_of(store: Store) -> list[str]:
    """Return where the index of an open store differs from its directories."""
    inconsistencies: list[str] = []
    with store.exclusive() as plan:
        for name in store.stream_names():
            shown = [
                (status, int(file.partition("-")[0]), _event_in(directory / file))
                for status in STATUS_DIRECTORIES
                if (directory := Path(store.layout.events(name, status))).is_dir()
                for file in names_in(directory)
            ]
            believed = [(r.status, r.position, r.event_id) for r in plan.events.stream(name).rows.values()]
            if sorted(shown) != sorted(believed):
                inconsistencies.append(
                    f"stream {name} has {sorted(shown)} in its files and {sorted(believed)} in the index"
                )
        for name in store.stream_names():
            ended = [line.event["eventId"] for line in store.tree.read_archive(name)]
            inconsistencies += [
                f"{each} of {name} has ended, and the index does not know that"
                for each in ended
                if not store.tree.is_archived(name, each)
            ]
        tokens = sorted(int(name.removesuffix(".json")) for name in names_in(store.layout.leases))
        if tokens != sorted(plan.events.leases):
            inconsistencies.append(f"leases {tokens} are in files, {sorted(plan.events.leases)} in the index")
        for kind in store.kinds.values():
            shown_records = [
                name
                for each in store.layout.record_directories(kind)
                if (directory := Path(store.layout.root, each)).is_dir()
                for name in names_in(directory)
            ]
            if len(shown_records) != len(store.records.headers(kind.name)):
                inconsistencies.append(
                    f"of {kind.name}, {sorted(shown_records)} are in files, and another number is in the index"
                )
    return inconsistencies


def files_of(root: Path) -> dict[str, bytes]:
    """Return every relevant file with its content."""
    found = {}
    for directory, _, names in os.walk(root):
        for name in names:
            if name != "lock" and not directory.endswith(("/bus/tmp", "/bus/wake")):
                path = Path(directory, name)
                found[str(path.relative_to(root))] = path.read_bytes()
    return found


def names_in(directory: str | Path) -> list[str]:
    """Return the names in a directory."""
    with os.scandir(directory) as found:
        return [entry.name for entry in found]


def _events(store: Store, plan: TransactionPlan, stream: str) -> list[Any]:
    return [_event(store, plan, row) for _, row in sorted(plan.events.stream(stream).rows.items())]


def _event(store: Store, plan: TransactionPlan, row: EventRow) -> tuple[Any, ...]:
    try:
        payload = store.tree.read_event(row)[0].payload
    except MalformedEvent:
        # Of a damaged file only the name and the directory are known.
        return row.event_id, row.status
    return (
        row.event_id,
        row.key,
        row.status,
        row.attempt,
        row.crash_count,
        row.max_attempts,
        _due(row, plan.now),
        row.blocks,
        row.cancel_requested,
        row.status != "PROCESSING" or row.token in plan.events.leases,
        row.error_code,
        row.error_message,
        [each["what"] for each in row.history or ()],
        payload,
    )


def _event_in(path: Path) -> str:
    try:
        return str(json.loads(path.read_bytes())["eventId"])
    except ValueError:
        # The file is damaged, so use its name.
        return path.stem.partition("-")[2]


def _due(row: EventRow, now: float) -> str:
    if row.due is None:
        return "behind another"
    return "now" if row.due <= now else "later"


def _ended(store: Store, stream: str) -> list[Any]:
    return [
        (line.event["eventId"], line.status, line.attempts, line.crashes, str(line.event["payload"]))
        for line in store.tree.read_archive(stream)
    ]


def _document(store: Store, kind: str, record_id: str) -> str:
    record = store.records.get(kind, record_id)
    return json.dumps(record.doc) if record else "missing"


def _keys(store: Store) -> list[str]:
    tops = (store.layout.once, store.layout.key_directory("seen"))
    paths = [Path(directory, name) for top in tops for directory, _, names in os.walk(top) for name in names]
    return sorted(str(path.relative_to(store.layout.root)) for path in paths if path.stat().st_mtime > time.time())


def _named(names: dict[int, str], positions: list[int]) -> tuple[str, ...]:
    return tuple(names.get(position, "ended") for position in positions)
