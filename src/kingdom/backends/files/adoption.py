"""Turn files that people drop into a directory into records. Move bad files to another directory, with a reason."""

import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from kingdom.backends.files.journal.entry import RecordHeader, RecordWrite
from kingdom.backends.files.store import Store
from kingdom.backends.files.system.disk import read_file
from kingdom.backends.files.transaction_plan import TransactionPlan
from kingdom.backends.files.tree.file_formats import decode_document, encode_document
from kingdom.backends.files.tree.layout import file_name, id_of_name, is_temporary_name
from kingdom.bus.envelope import STORE_KEY
from kingdom.bus.log import LogEntry
from kingdom.bus.port import EventCopy
from kingdom.bus.record import Adoption, Record, RecordKind
from kingdom.bus.stream import Topology
from kingdom.errors import KingdomError, Unavailable

# How often all directories are listed, to find files that caused no change notification.
SCAN_EVERY_SECONDS = 10.0
# A file with invalid JSON may be incomplete. If it has not changed for this long, it counts as complete.
COMPLETE_AFTER_SECONDS = 2.0
# The largest file that is adopted, in bytes.
_SIZE_MAX = 16 << 20
_SUFFIX = ".json"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _DropDirectory:
    """A directory into which people may drop documents of one kind. Bad files are moved to `rejected`."""

    kind: RecordKind
    adoption: Adoption
    path: str
    rejected: str


class _RejectedFile(Exception):
    """A file that cannot become a record, with a readable reason."""


class Adopter:
    """Finds dropped files and adopts or rejects each one. A bad file never delays a good one."""

    def __init__(self, store: Store, topology: Topology) -> None:
        self._store = store
        self._topology = topology
        kinds = [(kind, kind.adoption) for kind in store.kinds.values() if kind.adoption]
        root = store.layout.root
        self._directories = {
            path: _DropDirectory(kind, adoption, path, store.layout.rejected(kind, adoption.state))
            for kind, adoption in kinds
            if (path := f"{root}/{kind.directories[adoption.state]}")
        }
        # The paths of incomplete files, and when to read each file again.
        self._incomplete: dict[str, float] = {}
        self._next_scan = 0.0

    @property
    def directories(self) -> tuple[str, ...]:
        """Return the directories to watch."""
        return tuple(self._directories)

    def create_directories(self) -> None:
        """Create the directories, so that they can be watched."""
        for directory in self._directories.values():
            self._store.disk.make_directory(directory.path)

    def adopt(self, paths: Collection[str] = ()) -> set[str]:
        """Adopt these files, and periodically all files in the directories. Return the streams that got an event."""
        now = time.monotonic()
        candidates = {*paths, *(path for path, due in self._incomplete.items() if due <= now)}
        if now >= self._next_scan:
            self._next_scan = now + SCAN_EVERY_SECONDS
            candidates |= {path for directory in self._directories for path in _list_files(directory)}
        if not candidates:
            return set()
        for path in candidates:
            self._incomplete.pop(path, None)
        with self._store.exclusive():
            dropped = sorted(path for path in candidates if self._is_dropped(path))
        return self._adopt_all(dropped)

    def _is_dropped(self, path: str) -> bool:
        parent, name = os.path.split(path)
        directory = self._directories.get(parent)
        if directory is None or is_temporary_name(name):
            return False
        known = id_of_name(name.removesuffix(_SUFFIX))
        # A file that is already a record in this directory was edited, not dropped.
        return known is None or self._store.records.state_of(directory.kind.name, known) != directory.adoption.state

    def _adopt_all(self, paths: Sequence[str]) -> set[str]:
        """Adopt files. The store is locked for each file separately, so that many files do not delay other writers."""
        streams: set[str] = set()
        store_fault: Exception | None = None
        for path in paths:
            directory = self._directories[os.path.dirname(path)]
            try:
                with self._store.exclusive() as plan:
                    streams |= self._adopt_one(plan, directory, path)
            except Unavailable:
                # The disk is the cause, so the file is not rejected.
                raise
            except Exception as error:  # noqa: BLE001 - no error of one file may stop the others
                if self._is_store_fault(error):
                    # A part of the store cannot be used. The file waits, and the others may need other parts.
                    store_fault = error
                else:
                    self._reject(directory, path, _reason(error))
        if store_fault:
            raise store_fault
        return streams

    def _is_store_fault(self, error: Exception) -> bool:
        cause = error.__cause__
        return isinstance(cause, OSError) and str(cause.filename).startswith(f"{self._store.layout.root}/")

    def _adopt_one(self, plan: TransactionPlan, directory: _DropDirectory, path: str) -> set[str]:
        """Write a dropped file as a record, and publish the event that announces it."""
        name = os.path.basename(path)
        read = self._read(directory, path)
        if read is None:
            return set()
        if not isinstance(read.id, str):
            raise _RejectedFile(f"its id must be a string, not {read.id!r}")
        if file_name(read.id) + _SUFFIX != name:
            raise _RejectedFile(
                f"its name is {name}, but its id is {read.id!r}: rename it to {file_name(read.id)}{_SUFFIX}"
            )
        known = self._store.records.get_header(directory.kind.name, read.id)
        if known is not None and known.state == directory.adoption.state:
            return set()
        if known is not None:
            raise _RejectedFile(f"{read.id} already exists in state {known.state}")
        record = read.replace(kind=directory.kind.name, state=directory.adoption.state, version=1)
        envelope = directory.adoption.announce(record)
        copies = [EventCopy(self._topology.stream(each), envelope, None) for each in self._topology.route(envelope)]
        due = record.due_at.timestamp() if record.due_at else None
        first, *others = directory.kind.index_values(record.indexed)
        header = RecordHeader(
            directory.kind.name, record.id, 1, record.state, first, due, plan.now, plan.now, None, *others
        )
        plan.entry.records = [
            RecordWrite(header, encode_document(record.doc), directory.kind.directories[record.state], None)
        ]
        plan.publish(copies)
        self._log_result(plan, "record.adopted", directory, {"kind": directory.kind.name, "id": record.id})
        self._store.commit(plan)
        return {copy.stream.name for copy in copies}

    def _read(self, directory: _DropDirectory, path: str) -> Record | None:
        """Return a dropped file as a record; None if it is missing or may be incomplete."""
        try:
            content, age = _content(path)
        except FileNotFoundError:
            return None
        try:
            doc = decode_document(content)
        except msgspec.MsgspecError as error:
            if age < COMPLETE_AFTER_SECONDS:
                self._incomplete[path] = time.monotonic() + COMPLETE_AFTER_SECONDS - age
                return None
            raise _RejectedFile(f"it is not a JSON object: {error}") from error
        doc.pop(STORE_KEY, None)
        return directory.adoption.read(doc)

    def _reject(self, directory: _DropDirectory, path: str, reason: str) -> None:
        """Move a file to the directory for rejected files, and write the reason to a file next to it and to the log."""
        with self._store.exclusive() as plan:
            self._store.disk.make_directory(directory.rejected)
            kept = _free_name(directory.rejected, os.path.basename(path))
            text = f"{reason}\n\nFix it and move it back to {directory.path} under a name that ends in {_SUFFIX}.\n"
            self._store.disk.create(f"{kept}.reason", text.encode("utf-8", "replace"))
            try:
                self._store.disk.rename(path, kept)
            except OSError as error:
                # The file was removed meanwhile, or this process has no permission to move it.
                self._store.disk.unlink(f"{kept}.reason")
                _log.warning("cannot move a rejected file aside", file=path, reason=reason, error=str(error))
                return
            data = {"kind": directory.kind.name, "file": os.path.basename(kept), "reason": reason}
            self._log_result(plan, "record.rejected", directory, data)
            self._store.commit(plan)
        _log.warning("dropped file rejected", **data)

    def _log_result(
        self, plan: TransactionPlan, entry_type: str, directory: _DropDirectory, data: Mapping[str, Any]
    ) -> None:
        # A file name may contain bytes that are not UTF-8.
        safe = {key: value.encode("utf-8", "replace").decode() for key, value in data.items()}
        plan.log(LogEntry(type=entry_type, actor="bus", data=safe, aggregate_type=directory.kind.name))


def _reason(error: Exception) -> str:
    """Return the reason for a rejection, as a text for the person who dropped the file."""
    return str(error) if isinstance(error, (_RejectedFile, KingdomError)) else f"it is not valid: {error!r}"


def _list_files(directory: str) -> Iterator[str]:
    with suppress(FileNotFoundError), os.scandir(directory) as found:
        yield from (entry.path for entry in found)


def _content(path: str) -> tuple[bytes, float]:
    """Return the content of a plain file, and the seconds since its last change."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise _RejectedFile("it is not a plain file")
    if not path.endswith(_SUFFIX):
        raise _RejectedFile(f"its name does not end in {_SUFFIX}")
    if status.st_size > _SIZE_MAX:
        raise _RejectedFile(f"it is larger than {_SIZE_MAX >> 20} MB")
    try:
        return read_file(path), time.time() - status.st_mtime
    except PermissionError:
        raise _RejectedFile("the user of this process may not read it") from None


def _free_name(directory: str, name: str) -> str:
    """Return an unused path with a plain ASCII name."""
    safe, number = file_name(name), 1
    path = f"{directory}/{safe}"
    while os.path.lexists(path):
        number += 1
        path = f"{directory}/{safe}.{number}"
    return path
