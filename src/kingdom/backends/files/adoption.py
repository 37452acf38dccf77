"""Files that people drop into a directory: taken in as records, or moved aside with a reason that can be read."""

import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import structlog

from kingdom.backends.files.bodies import document, read_document
from kingdom.backends.files.disk import read_file
from kingdom.backends.files.draft import Draft
from kingdom.backends.files.entry import Card, Stored
from kingdom.backends.files.layout import file_name, id_of_name, is_unfinished
from kingdom.backends.files.store import Store
from kingdom.bus.envelope import STORE_KEY
from kingdom.bus.log import LogEntry
from kingdom.bus.port import EventCopy
from kingdom.bus.record import Adoption, Record, RecordKind
from kingdom.bus.stream import Topology
from kingdom.errors import KingdomError, Unavailable

# The source document's polling period: what no notice was given of is found by then.
LOOK_EVERY_SECONDS = 10.0
# A file that cannot be read may be half written; after this long without a change it is not.
SETTLED_SECONDS = 2.0
_SIZE_MAX = 16 << 20
_SUFFIX = ".json"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Box:
    """A directory into which documents of one kind may be dropped."""

    kind: RecordKind
    adoption: Adoption
    path: str
    rejected: str


class _Refused(Exception):
    """This file cannot become a record, for a reason that a person can read."""


class Adopter:
    """Looks for dropped files and decides on each of them; a bad one never keeps a good one waiting."""

    def __init__(self, store: Store, topology: Topology) -> None:
        self._store = store
        self._topology = topology
        kinds = [(kind, kind.adoption) for kind in store.kinds.values() if kind.adoption]
        root = store.layout.root
        self._boxes = {
            path: _Box(kind, adoption, path, store.layout.rejected(kind, adoption.state))
            for kind, adoption in kinds
            if (path := f"{root}/{kind.directories[adoption.state]}")
        }
        # Half-written ones, and when each is looked at again without being told.
        self._unsettled: dict[str, float] = {}
        self._next_look = 0.0

    @property
    def boxes(self) -> tuple[str, ...]:
        """Return the directories to watch."""
        return tuple(self._boxes)

    def make_boxes(self) -> None:
        """Make the directories, so that there is something to watch and to drop into."""
        for box in self._boxes.values():
            self._store.disk.make_directory(box.path)

    def look(self, paths: Collection[str] = ()) -> set[str]:
        """Look at these files, and now and then at all; returns the streams that got an event."""
        now = time.monotonic()
        candidates = {*paths, *(path for path, due in self._unsettled.items() if due <= now)}
        if now >= self._next_look:
            self._next_look = now + LOOK_EVERY_SECONDS
            candidates |= {path for box in self._boxes for path in _listed(box)}
        if not candidates:
            return set()
        for path in candidates:
            self._unsettled.pop(path, None)
        with self._store.exclusive():
            dropped = sorted(path for path in candidates if self._is_dropped(path))
        return self._take_in(dropped)

    def _is_dropped(self, path: str) -> bool:
        directory, name = os.path.split(path)
        box = self._boxes.get(directory)
        if box is None or is_unfinished(name):
            return False
        known = id_of_name(name.removesuffix(_SUFFIX))
        # One that is ours already and lies where it should is none of our business, however it was edited.
        return known is None or self._store.shelf.state_of(box.kind.name, known) != box.adoption.state

    def _take_in(self, paths: Sequence[str]) -> set[str]:
        """Decide on each file under a lock of its own, so that a thousand of them do not stop the work."""
        streams: set[str] = set()
        for path in paths:
            box = self._boxes[os.path.dirname(path)]
            try:
                with self._store.exclusive() as draft:
                    streams |= self._adopt(draft, box, path)
            except Unavailable:
                # The disk is at fault, and not the file.
                raise
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one file must not stop the others
                self._reject(box, path, _reason(error))
        return streams

    def _adopt(self, draft: Draft, box: _Box, path: str) -> set[str]:
        """Write a dropped file anew as a record, with the event that tells of it."""
        name = os.path.basename(path)
        read = self._read(box, path)
        if read is None:
            return set()
        if not isinstance(read.id, str):
            raise _Refused(f"its id must be a text, and not {read.id!r}")
        if file_name(read.id) + _SUFFIX != name:
            raise _Refused(f"the file is called {name}, its id is {read.id!r}: call it {file_name(read.id)}{_SUFFIX}")
        known = self._store.shelf.card(box.kind.name, read.id)
        if known is not None and known.state == box.adoption.state:
            return set()
        if known is not None:
            raise _Refused(f"{read.id} is known already: it is {known.state}")
        record = replace(read, kind=box.kind.name, state=box.adoption.state, version=1)
        envelope = box.adoption.announce(record)
        copies = [EventCopy(self._topology.stream(each), envelope, None) for each in self._topology.route(envelope)]
        due = record.due_at.timestamp() if record.due_at else None
        card = Card(box.kind.name, record.id, 1, record.state, record.owner, due, draft.now, draft.now, None)
        draft.entry.records = [Stored(card, document(record.doc), box.kind.directories[record.state], None)]
        draft.publish(copies)
        self._tell(draft, "record.adopted", box, {"kind": box.kind.name, "id": record.id})
        self._store.commit(draft)
        return {copy.stream.name for copy in copies}

    def _read(self, box: _Box, path: str) -> Record | None:
        """Return a dropped file as a record; None where it is gone, or may not be finished yet."""
        try:
            content, age = _content(path)
        except FileNotFoundError:
            return None
        try:
            doc = read_document(content)
        except msgspec.MsgspecError as error:
            if age < SETTLED_SECONDS:
                self._unsettled[path] = time.monotonic() + SETTLED_SECONDS - age
                return None
            raise _Refused(f"it is no JSON object: {error}") from error
        doc.pop(STORE_KEY, None)
        return box.adoption.read(doc)

    def _reject(self, box: _Box, path: str, reason: str) -> None:
        """Move a file aside and say why, beside it and in the log."""
        with self._store.exclusive() as draft:
            self._store.disk.make_directory(box.rejected)
            kept = _free_name(box.rejected, os.path.basename(path))
            text = f"{reason}\n\nMend it and put it back into {box.path} under a name that ends in {_SUFFIX}.\n"
            self._store.disk.create(f"{kept}.reason", text.encode("utf-8", "replace"))
            try:
                self._store.disk.rename(path, kept)
            except OSError as error:
                # Somebody else was faster, or it is not ours to move.
                self._store.disk.unlink(f"{kept}.reason")
                _log.warning("a dropped file could not be moved aside", file=path, reason=reason, error=str(error))
                return
            data = {"kind": box.kind.name, "file": os.path.basename(kept), "reason": reason}
            self._tell(draft, "record.rejected", box, data)
            self._store.commit(draft)
        _log.warning("a dropped file was rejected", **data)

    def _tell(self, draft: Draft, what: str, box: _Box, data: Mapping[str, Any]) -> None:
        safe = {key: value.encode("utf-8", "replace").decode() for key, value in data.items()}
        draft.say(LogEntry(type=what, actor="bus", data=safe, aggregate_type=box.kind.name))


def _reason(error: Exception) -> str:
    """Return why a file is rejected, for the person who dropped it."""
    return str(error) if isinstance(error, (_Refused, KingdomError)) else f"it does not fit: {error!r}"


def _listed(directory: str) -> Iterator[str]:
    with suppress(FileNotFoundError), os.scandir(directory) as found:
        yield from (entry.path for entry in found)


def _content(path: str) -> tuple[bytes, float]:
    """Return what a file holds, and for how many seconds it has not changed; refuses what is no plain file."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise _Refused("it is no plain file")
    if not path.endswith(_SUFFIX):
        raise _Refused(f"its name does not end in {_SUFFIX}")
    if status.st_size > _SIZE_MAX:
        raise _Refused(f"it is larger than {_SIZE_MAX >> 20} MB")
    try:
        return read_file(path), time.time() - status.st_mtime
    except PermissionError as error:
        raise _Refused("it may not be read by the user who runs this") from error


def _free_name(directory: str, name: str) -> str:
    """Return a path for a file that nobody has, of a name that every terminal can show."""
    safe, number = file_name(name), 1
    path = f"{directory}/{safe}"
    while os.path.lexists(path):
        number += 1
        path = f"{directory}/{safe}.{number}"
    return path
