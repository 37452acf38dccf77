"""The directory tree: the one module that knows where anything lies, and how an id becomes a file name."""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from datetime import date
from urllib.parse import quote, unquote

from kingdom.bus.record import RecordKind
from kingdom.errors import Misconfigured

# Where events lie, by their status.
STATUS_DIRECTORIES: Mapping[str, str] = {"PENDING": "pending", "PROCESSING": "processing", "DEAD": "dead"}
# Dedup scopes that the source documents give a place of their own.
_SCOPE_DIRECTORIES: Mapping[str, str] = {"seen": "state/sentinel/seen"}
# Records whose files they name without an ending.
_WITHOUT_ENDING = frozenset({"state/king/task-seq", "state/king/msg-seq"})
_ENDING = ".json"
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_NAME_MAX = 200
_HASH_MARK = "%h"
_DAY = re.compile(r"[0-9]{8}\.jsonl")
_INDEX = re.compile(r"[0-9]{8}")
_KEPT_LOG = re.compile(r"events-[0-9]{8}(\.[0-9]+)?\.log")
# What an editor or a careful writer leaves beside a file while it is being changed.
_UNFINISHED = re.compile(r"^\.|^4913$|^sed\w{6}$|~$|\.(tmp|swp|swx|part|bak|orig)$|^#.*#$")


def file_name(name: str) -> str:
    """Return an id as one safe file name: as it is where that is safe, else with %-codes, shortened by a hash.

    No two ids share a name, and none can leave its directory: the result is plain ASCII without a slash.
    """
    if not name:
        raise Misconfigured("an empty id cannot become a file name")
    if len(name) <= _NAME_MAX and _PLAIN.fullmatch(name):
        return name
    encoded = quote(name.encode("utf-8", "surrogatepass"), safe="").replace("~", "%7E")
    # A leading dot hides a file or names a directory, a leading dash is taken for an option.
    if encoded[0] in ".-":
        encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}"
    if len(encoded) <= _NAME_MAX:
        return encoded
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{re.sub('%.{0,1}$', '', encoded[:120])}{_HASH_MARK}{digest}"


def id_of_name(name: str) -> str | None:
    """Return the id that a file name stands for, or None where only the file's content knows."""
    if _HASH_MARK in name:
        return None
    try:
        return unquote(name, errors="surrogatepass") or None
    except UnicodeDecodeError:
        # No id becomes such a name: somebody else has made it.
        return None


def _whole_name(name: str, what: str) -> str:
    """Return the name of a directory, from which the id must be told again."""
    known = file_name(name)
    if _HASH_MARK in known:
        raise Misconfigured(f"the name of a {what} is too long for a directory: {name[:60]!r}…")
    return known


def index_of(lines: str) -> str:
    """Return the index of a file of ended events; not beside it, where people read."""
    directory, name = os.path.split(lines)
    return f"{directory}-ids/{name.removesuffix('.jsonl')}"


def is_unfinished(name: str) -> bool:
    """Tell whether a name belongs to a file that somebody is still writing."""
    return _UNFINISHED.search(name) is not None


def _plain_files(directory: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the plain files with such a name: whatever else somebody has put beside them is none of ours."""
    try:
        with os.scandir(directory) as found:
            files = [e.path for e in found if pattern.fullmatch(e.name) and e.is_file(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(files)


class Layout:
    """Paths below one root, as text, since they are made by the thousand."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.bus = f"{root}/bus"
        self.lock = f"{root}/bus/lock"
        self.host = f"{root}/bus/host.json"
        self.kinds = f"{root}/bus/kinds.json"
        self.unfinished_import = f"{root}/bus/import-unfinished"
        self.journal = f"{root}/bus/journal"
        self.leases = f"{root}/bus/leases"
        self.pauses = f"{root}/bus/paused"
        self.wake = f"{root}/bus/wake"
        self.temporary = f"{root}/bus/tmp"
        self.streams = f"{root}/bus/streams"
        self.once = f"{root}/bus/once"
        self.logs = f"{root}/logs"
        self.log = f"{root}/logs/events.log"

    def fixed_directories(self) -> tuple[str, ...]:
        """Return the directories that exist from the first moment on."""
        return (self.journal, self.leases, self.pauses, self.wake, self.temporary, self.streams, self.once, self.logs)

    def stream_names(self) -> list[str]:
        """Return the names of all streams that have a directory."""
        with os.scandir(self.streams) as found:
            names = [id_of_name(entry.name) for entry in found if entry.is_dir()]
        return sorted(name for name in names if name)

    def stream(self, stream: str) -> str:
        """Return the directory of one stream."""
        return f"{self.streams}/{_whole_name(stream, 'stream')}"

    def events(self, stream: str, status: str) -> str:
        """Return the directory of a stream's events in one status."""
        return f"{self.stream(stream)}/{STATUS_DIRECTORIES[status]}"

    def done(self, stream: str, day: str) -> str:
        """Return the file to which the events that ended on one day are added, a line each."""
        return f"{self.stream(stream)}/done/{day}.jsonl"

    def lease(self, token: int) -> str:
        """Return the file of one lease."""
        return f"{self.leases}/{token}.json"

    def pause(self, stream: str) -> str:
        """Return the file that stops a stream."""
        return f"{self.pauses}/{_whole_name(stream, 'stream')}.json"

    def bell(self, stream: str) -> str:
        """Return the file that is touched when a stream may have work."""
        return f"{self.wake}/{file_name(stream)}"

    def once_scope(self, scope: str) -> str:
        """Return the directory of one dedup scope."""
        known = _SCOPE_DIRECTORIES.get(scope)
        return f"{self.root}/{known}" if known else f"{self.once}/{_whole_name(scope, 'dedup scope')}"

    @staticmethod
    def is_empty_key(scope: str, path: str) -> bool:
        """Tell whether a key is an empty file, of which only the name and the time of change tell anything."""
        return scope in _SCOPE_DIRECTORIES and id_of_name(os.path.basename(path)) is not None

    def once_key(self, scope: str, key: str) -> str:
        """Return the file that stands for one taken dedup key."""
        return f"{self.once_scope(scope)}/{file_name(key)}"

    def once_scopes(self) -> dict[str, str]:
        """Return the directories of all scopes that have keys, by scope."""
        with os.scandir(self.once) as found:
            directories = [entry for entry in found if entry.is_dir(follow_symlinks=False)]
        own = {scope: entry.path for entry in directories if (scope := id_of_name(entry.name))}
        placed = {scope: f"{self.root}/{directory}" for scope, directory in _SCOPE_DIRECTORIES.items()}
        return own | {scope: path for scope, path in placed.items() if os.path.isdir(path)}

    def log_of(self, day: date, part: int = 0) -> str:
        """Return the name that a day's log gets when it is full, or when the day is over."""
        return f"{self.logs}/events-{day:%Y%m%d}{f'.{part}' if part else ''}.log"

    def kept_logs(self) -> list[str]:
        """Return the files into which the log was split, by name."""
        return _plain_files(self.logs, _KEPT_LOG)

    def done_days(self, stream: str) -> list[str]:
        """Return the files of a stream's events that have ended, by day."""
        return _plain_files(f"{self.stream(stream)}/done", _DAY)

    def done_indexes(self, stream: str) -> list[str]:
        """Return the indexes of those files, by day."""
        return _plain_files(f"{self.stream(stream)}/done-ids", _INDEX)

    def record(self, directory: str, record_id: str) -> str:
        """Return the file of a record in the directory of its state."""
        return f"{self.root}/{directory}/{self.record_name(directory, record_id)}"

    @staticmethod
    def record_name(directory: str, record_id: str) -> str:
        """Return how the file of a record is called."""
        name = file_name(record_id)
        return name if f"{directory}/{name}" in _WITHOUT_ENDING else f"{name}{_ENDING}"

    @staticmethod
    def is_record_name(directory: str, name: str) -> bool:
        """Tell whether a file can be a record by its name."""
        return name.endswith(_ENDING) or f"{directory}/{name}" in _WITHOUT_ENDING

    @staticmethod
    def record_directories(kind: RecordKind) -> tuple[str, ...]:
        """Return the directories in which records of a kind can lie."""
        return tuple(dict.fromkeys(kind.directories.values()))

    def rejected(self, kind: RecordKind, state: str) -> str:
        """Return the directory for files that were dropped beside the records of a kind and could not be taken."""
        return f"{os.path.dirname(f'{self.root}/{kind.directories[state]}')}/rejected"

    def check(self, kinds: Iterable[RecordKind]) -> None:
        """Refuse kinds that would share a directory, leave the root or write where the store itself does."""
        owners: dict[str, str] = {}
        for kind in kinds:
            for directory in dict.fromkeys(kind.directories.values()):
                parts = directory.split("/")
                if directory.startswith("/") or {"", ".", ".."} & set(parts) or "\x00" in directory:
                    raise Misconfigured(f"record kind {kind.name!r}: {directory!r} is no directory below the root")
                if parts[0] == "bus":
                    raise Misconfigured(f"record kind {kind.name!r}: {directory!r} belongs to the bus")
                owner = owners.setdefault(directory.casefold(), kind.name)
                if owner != kind.name:
                    raise Misconfigured(f"record kinds {owner!r} and {kind.name!r} share the directory {directory!r}")
