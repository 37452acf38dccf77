"""Remove old archive files, logs, dedup keys and records."""

import math
import os
import time
from datetime import UTC, datetime, timedelta
from itertools import islice

from kingdom.backends.files.store import Store
from kingdom.bus.operations import Retention, RetentionReport
from kingdom.bus.record import RecordKind

# How many keys or records are removed at once, so that no other process waits long for the lock.
_BATCH = 500


def retain(store: Store, retention: Retention) -> RetentionReport:
    """Remove old archive files and logs, expired dedup keys and old ended records."""
    return RetentionReport(
        partitions_made=0,
        partitions_dropped=_drop_archives(store, retention.archive) + _drop_logs(store, retention.log),
        dedup_keys_removed=_drop_keys(store),
        records_removed=_drop_records(store),
    )


def _drop_archives(store: Store, keep: timedelta) -> int:
    oldest = f"{datetime.now(UTC) - keep:%Y%m%d}"
    dropped = 0
    for stream in store.stream_names():
        days = [path for path in store.layout.archive_files(stream) if os.path.basename(path) < oldest]
        dropped += sum(map(store.disk.unlink, days))
        for index in store.layout.archive_id_indexes(stream):
            if os.path.basename(index) < oldest:
                store.disk.unlink(index)
    return dropped


def _drop_logs(store: Store, keep: timedelta) -> int:
    oldest = f"events-{datetime.now(UTC) - keep:%Y%m%d}"
    old = [path for path in store.layout.rotated_logs() if os.path.basename(path) < oldest]
    return sum(map(store.disk.unlink, old))


def _drop_keys(store: Store) -> int:
    dropped = 0
    for scope, directory in store.layout.key_scopes().items():
        # List the keys without the lock. Each key is checked again under the lock.
        now = time.time()
        with os.scandir(directory) as found:
            # Check modification times first, because opening a million files takes long.
            keys = (each.path for each in found if each.is_file(follow_symlinks=False) and _stamped(each) < now)
            expired = [path for path in keys if _expires(store, scope, path) < now]
        for start in range(0, len(expired), _BATCH):
            with store.exclusive() as plan:
                for path in expired[start : start + _BATCH]:
                    if _expires(store, scope, path) < plan.now:
                        dropped += store.disk.unlink(path)
    return dropped


def _stamped(file: os.DirEntry[str]) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        # Another process has removed this key.
        return math.inf


def _expires(store: Store, scope: str, path: str) -> float:
    try:
        return store.tree.read_key(scope, path)[1]
    except FileNotFoundError:
        # Another process has removed this key.
        return math.inf


def _drop_records(store: Store) -> int:
    dropped = 0
    for kind in store.kinds.values():
        if kind.retention is None:
            continue
        while True:
            with store.exclusive() as plan:
                ended = store.records.ended_before(kind.name, plan.now - kind.retention.total_seconds())
                old = list(islice((header for header in ended if not _is_needed(store, kind, header.id)), _BATCH))
                if not old:
                    break
                plan.entry.removed = [(kind.name, kind.directories[header.state], header.id) for header in old]
                store.commit(plan)
            dropped += len(old)
    return dropped


def _is_needed(store: Store, kind: RecordKind, record_id: str) -> bool:
    """Return whether an ended record must stay: its document is not final, or an open or dead event needs it."""
    if not kind.final_when and kind.kept_for is None:
        return False
    record = store.records.get(kind.name, record_id)
    if record is None or not kind.is_final(record.state, record.doc):
        return True
    events = set(record.doc.get(kind.kept_for or "", ()))
    return any(events & store.events.stream(name).by_event.keys() for name in store.stream_names())
