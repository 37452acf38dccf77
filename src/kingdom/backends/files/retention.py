"""Removing what has been kept long enough, counted from the moment at which it ended."""

import math
import os
import time
from datetime import UTC, datetime, timedelta
from itertools import islice

from kingdom.backends.files.store import Store
from kingdom.bus.operations import Retention, RetentionReport
from kingdom.bus.record import RecordKind

# So many at a time, so that nobody waits for the lock for long.
_BATCH = 500


def retain(store: Store, retention: Retention) -> RetentionReport:
    """Remove old files of ended events and of the log, expired dedup keys and ended records."""
    return RetentionReport(
        partitions_made=0,
        partitions_dropped=_drop_ended(store, retention.archive) + _drop_logs(store, retention.log),
        dedup_keys_removed=_drop_keys(store),
        records_removed=_drop_records(store),
    )


def _drop_ended(store: Store, keep: timedelta) -> int:
    oldest = f"{datetime.now(UTC) - keep:%Y%m%d}"
    dropped = 0
    for stream in store.stream_names():
        days = [path for path in store.layout.done_days(stream) if os.path.basename(path) < oldest]
        dropped += sum(map(store.disk.unlink, days))
        for index in store.layout.done_indexes(stream):
            if os.path.basename(index) < oldest:
                store.disk.unlink(index)
    return dropped


def _drop_logs(store: Store, keep: timedelta) -> int:
    oldest = f"events-{datetime.now(UTC) - keep:%Y%m%d}"
    old = [path for path in store.layout.kept_logs() if os.path.basename(path) < oldest]
    return sum(map(store.disk.unlink, old))


def _drop_keys(store: Store) -> int:
    dropped = 0
    for scope, directory in store.layout.once_scopes().items():
        # Looked through without the lock; each is looked at again before it goes.
        now = time.time()
        with os.scandir(directory) as found:
            # Times of change first: to open a million files takes long.
            keys = (e.path for e in found if e.is_file(follow_symlinks=False) and e.stat().st_mtime < now)
            expired = [path for path in keys if _expires(store, scope, path) < now]
        for start in range(0, len(expired), _BATCH):
            with store.exclusive() as draft:
                for path in expired[start : start + _BATCH]:
                    if _expires(store, scope, path) < draft.now:
                        dropped += store.disk.unlink(path)
    return dropped


def _expires(store: Store, scope: str, path: str) -> float:
    try:
        return store.tree.read_key(scope, path)[1]
    except FileNotFoundError:
        # Somebody else was faster.
        return math.inf


def _drop_records(store: Store) -> int:
    dropped = 0
    for kind in store.kinds.values():
        if kind.retention is None:
            continue
        while True:
            with store.exclusive() as draft:
                ended = store.shelf.ended_before(kind.name, draft.now - kind.retention.total_seconds())
                old = list(islice((card for card in ended if not _is_needed(store, kind, card.id)), _BATCH))
                if not old:
                    break
                draft.entry.removed = [(kind.name, kind.directories[card.state], card.id) for card in old]
                store.commit(draft)
            dropped += len(old)
    return dropped


def _is_needed(store: Store, kind: RecordKind, record_id: str) -> bool:
    """Tell whether a record is not final in truth, or an open or dead event needs it."""
    if not kind.final_when and kind.kept_for is None:
        return False
    record = store.shelf.get(kind.name, record_id)
    if record is None or not kind.is_final(record.state, record.doc):
        return True
    events = set(record.doc.get(kind.kept_for or "", ()))
    return any(events & store.books.stream(name).by_event.keys() for name in store.stream_names())
