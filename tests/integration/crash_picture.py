"""Everything a store says of itself, without the times and numbers that differ from run to run; and whether it lies."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from kingdom.backends.files.draft import Draft
from kingdom.backends.files.entry import Row
from kingdom.backends.files.layout import STATUS_DIRECTORIES
from kingdom.backends.files.log import read_log
from kingdom.backends.files.store import Store
from kingdom.bus.log import LogCursor
from kingdom.errors import MalformedEvent

Picture = dict[str, Any]


def picture_of(store: Store) -> Picture:
    """Return what the books and files of an open store say."""
    with store.exclusive() as draft:
        streams = store.stream_names()
        names = {r.position: r.event_id for name in streams for r in draft.books.stream(name).rows.values()}
        leases = draft.books.leases.values()
        return {
            "events": {name: _events(store, draft, name) for name in streams if draft.books.stream(name).rows},
            "ended": {name: ended for name in streams if (ended := _ended(store, name))},
            "leases": sorted(
                (lease.worker, lease.stream, _named(names, lease.positions), _named(names, lease.cancelled))
                for lease in leases
            ),
            "records": {
                f"{kind}/{card.id}": (card.version, card.state, card.owner, _document(store, kind, card.id))
                for kind in store.kinds
                for card in store.shelf.cards(kind)
            },
            "log": [
                (each.cursor.sequence, each.entry.type, each.entry.actor, str(each.entry.data))
                for each in read_log(store.layout, LogCursor(), sys.maxsize)
            ],
            "log ends at": draft.books.log_sequence,
            "keys": _keys(store),
            "pauses": sorted((pause.stream, pause.reason, pause.actor) for pause in draft.books.pauses.values()),
        }


def lies_of(store: Store) -> list[str]:
    """Return where the books of an open store differ from what anybody can see in its directories."""
    lies: list[str] = []
    with store.exclusive() as draft:
        for name in store.stream_names():
            shown = [
                (status, int(file.partition("-")[0]), _event_in(directory / file))
                for status in STATUS_DIRECTORIES
                if (directory := Path(store.layout.events(name, status))).is_dir()
                for file in names_in(directory)
            ]
            believed = [(r.status, r.position, r.event_id) for r in draft.books.stream(name).rows.values()]
            if sorted(shown) != sorted(believed):
                lies.append(f"stream {name} shows {sorted(shown)} and believes {sorted(believed)}")
        for name in store.stream_names():
            ended = [line.event["eventId"] for line in store.tree.ended_events(name)]
            lies += [
                f"{each} of {name} has ended, and is not known to"
                for each in ended
                if not store.tree.has_ended(name, each)
            ]
        tokens = sorted(int(name.removesuffix(".json")) for name in names_in(store.layout.leases))
        if tokens != sorted(draft.books.leases):
            lies.append(f"leases {tokens} are shown, {sorted(draft.books.leases)} believed")
        for kind in store.kinds.values():
            shown_records = [
                name
                for each in store.layout.record_directories(kind)
                if (directory := Path(store.layout.root, each)).is_dir()
                for name in names_in(directory)
            ]
            if len(shown_records) != len(store.shelf.cards(kind.name)):
                lies.append(f"of {kind.name}, {sorted(shown_records)} are shown, not as many are believed")
    return lies


def files_of(root: Path) -> dict[str, bytes]:
    """Return every file that has a meaning, with its content."""
    found = {}
    for directory, _, names in os.walk(root):
        for name in names:
            if name != "lock" and not directory.endswith(("/bus/tmp", "/bus/wake")):
                path = Path(directory, name)
                found[str(path.relative_to(root))] = path.read_bytes()
    return found


def names_in(directory: str | Path) -> list[str]:
    """Return what lies in a directory."""
    with os.scandir(directory) as found:
        return [entry.name for entry in found]


def _events(store: Store, draft: Draft, stream: str) -> list[Any]:
    return [_event(store, draft, row) for _, row in sorted(draft.books.stream(stream).rows.items())]


def _event(store: Store, draft: Draft, row: Row) -> tuple[Any, ...]:
    try:
        payload = store.tree.read_event(row)[0].payload
    except MalformedEvent:
        # All that a damaged file tells is its name, and where it lies.
        return row.event_id, row.status
    return (
        row.event_id,
        row.key,
        row.status,
        row.attempt,
        row.crash_count,
        row.max_attempts,
        _due(row, draft.now),
        row.blocks,
        row.cancel_requested,
        row.status != "PROCESSING" or row.token in draft.books.leases,
        row.error_code,
        row.error_message,
        [each["what"] for each in row.history or ()],
        payload,
    )


def _event_in(path: Path) -> str:
    try:
        return str(json.loads(path.read_bytes())["eventId"])
    except ValueError:
        # Damaged: only its name tells.
        return path.stem.partition("-")[2]


def _due(row: Row, now: float) -> str:
    if row.due is None:
        return "behind another"
    return "now" if row.due <= now else "later"


def _ended(store: Store, stream: str) -> list[Any]:
    return [
        (line.event["eventId"], line.status, line.attempts, line.crashes, str(line.event["payload"]))
        for line in store.tree.ended_events(stream)
    ]


def _document(store: Store, kind: str, record_id: str) -> str:
    record = store.shelf.get(kind, record_id)
    return json.dumps(record.doc) if record else "missing"


def _keys(store: Store) -> list[str]:
    tops = (store.layout.once, store.layout.once_scope("seen"))
    paths = [Path(directory, name) for top in tops for directory, _, names in os.walk(top) for name in names]
    return sorted(str(path.relative_to(store.layout.root)) for path in paths if path.stat().st_mtime > time.time())


def _named(names: dict[int, str], positions: list[int]) -> tuple[str, ...]:
    return tuple(names.get(position, "ended") for position in positions)
