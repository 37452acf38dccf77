"""The directory tree. Only this module knows where each file is, and how an id becomes a file name."""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from datetime import date
from urllib.parse import quote, unquote

from kingdom.bus.record import RecordKind
from kingdom.errors import Misconfigured

# The directories of events by status.
STATUS_DIRECTORIES: Mapping[str, str] = {"PENDING": "pending", "PROCESSING": "processing", "DEAD": "dead"}
# Dedup scopes whose keys are in a documented directory. All other scopes are below `bus/once`.
_SCOPE_DIRECTORIES: Mapping[str, str] = {"seen": "state/sentinel/seen"}
# Records whose documented file names have no suffix.
_WITHOUT_SUFFIX = frozenset({"state/king/task-seq", "state/king/msg-seq"})
_SUFFIX = ".json"
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
# The longest file name, in characters. Filesystems allow 255 bytes, and the store adds suffixes.
_NAME_MAX = 200
# A file name with this mark contains the hash of its id. Encoded ids never contain it.
_HASH_MARK = "%h"
_DAY = re.compile(r"[0-9]{8}\.jsonl")
_INDEX = re.compile(r"[0-9]{8}")
_ROTATED_LOG = re.compile(r"events-[0-9]{8}(\.[0-9]+)?\.log")
# Names of temporary files that editors and other programs create while they write.
_TEMPORARY_NAME = re.compile(r"^\.|^4913$|^sed\w{6}$|~$|\.(tmp|swp|swx|part|bak|orig)$|^#.*#$")


def file_name(name: str) -> str:
    """Return a safe file name for an id: the id itself if possible, else with %-codes and perhaps a hash.

    The name is plain ASCII without a slash, so it stays in its directory. No two ids have the same name.
    """
    if not name:
        raise Misconfigured("an id must not be empty: it becomes a file name")
    if len(name) <= _NAME_MAX and _PLAIN.fullmatch(name):
        return name
    encoded = quote(name.encode("utf-8", "surrogatepass"), safe="").replace("~", "%7E")
    # A leading dot would hide the file or mean a directory (".."), and a leading dash would look like an option.
    if encoded[0] in ".-":
        encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}"
    if len(encoded) <= _NAME_MAX:
        return encoded
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{re.sub('%.{0,1}$', '', encoded[:120])}{_HASH_MARK}{digest}"


def id_of_name(name: str) -> str | None:
    """Return the id for which a file name was made. Return None if the name contains only a hash of the id."""
    if _HASH_MARK in name:
        return None
    try:
        return unquote(name, errors="surrogatepass") or None
    except UnicodeDecodeError:
        # The store never writes such a name, so another program did.
        return None


def _reversible_name(name: str, what: str) -> str:
    """Return a directory name without a hash, so that `id_of_name` can restore the id."""
    encoded = file_name(name)
    if _HASH_MARK in encoded:
        raise Misconfigured(f"the name of a {what} is too long for a directory: {name[:60]!r}…")
    return encoded


def archive_index_file(archive: str) -> str:
    """Return the id index of an archive file. It has its own directory, so that people see only the archive."""
    directory, name = os.path.split(archive)
    return f"{directory}-ids/{name.removesuffix('.jsonl')}"


def is_temporary_name(name: str) -> bool:
    """Return whether a name belongs to a file that is still being written."""
    return _TEMPORARY_NAME.search(name) is not None


def _plain_files(directory: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the sorted paths of the plain files whose names match the pattern."""
    try:
        with os.scandir(directory) as found:
            files = [e.path for e in found if pattern.fullmatch(e.name) and e.is_file(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(files)


class StoreLayout:
    """The paths below the root directory of a store. They are plain strings, because building them must be fast."""

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
        """Return the directories that every store has."""
        return (self.journal, self.leases, self.pauses, self.wake, self.temporary, self.streams, self.once, self.logs)

    def stream_names(self) -> list[str]:
        """Return the names of all streams that have a directory."""
        with os.scandir(self.streams) as found:
            names = [id_of_name(entry.name) for entry in found if entry.is_dir()]
        return sorted(name for name in names if name)

    def stream(self, stream: str) -> str:
        """Return the directory of one stream."""
        return f"{self.streams}/{_reversible_name(stream, 'stream')}"

    def events(self, stream: str, status: str) -> str:
        """Return the directory of a stream's events in one status."""
        return f"{self.stream(stream)}/{STATUS_DIRECTORIES[status]}"

    def archive_file(self, stream: str, day: str) -> str:
        """Return the archive file of a stream for one day. Each line is an event that ended on that day."""
        return f"{self.stream(stream)}/done/{day}.jsonl"

    def lease(self, token: int) -> str:
        """Return the file of one lease."""
        return f"{self.leases}/{token}.json"

    def pause(self, stream: str) -> str:
        """Return the file that pauses a stream."""
        return f"{self.pauses}/{_reversible_name(stream, 'stream')}.json"

    def wake_file(self, stream: str) -> str:
        """Return the file that is touched when a stream may have due events."""
        return f"{self.wake}/{file_name(stream)}"

    def key_directory(self, scope: str) -> str:
        """Return the directory of one dedup scope."""
        known = _SCOPE_DIRECTORIES.get(scope)
        return f"{self.root}/{known}" if known else f"{self.once}/{_reversible_name(scope, 'dedup scope')}"

    @staticmethod
    def is_empty_key(scope: str, path: str) -> bool:
        """Return whether a dedup key is stored as an empty file, of which only name and modification time are used."""
        return scope in _SCOPE_DIRECTORIES and id_of_name(os.path.basename(path)) is not None

    def key_file(self, scope: str, key: str) -> str:
        """Return the file of one dedup key."""
        return f"{self.key_directory(scope)}/{file_name(key)}"

    def key_scopes(self) -> dict[str, str]:
        """Return the directory of each dedup scope that has keys."""
        with os.scandir(self.once) as found:
            directories = [entry for entry in found if entry.is_dir(follow_symlinks=False)]
        own = {scope: entry.path for entry in directories if (scope := id_of_name(entry.name))}
        fixed = {scope: f"{self.root}/{directory}" for scope, directory in _SCOPE_DIRECTORIES.items()}
        return own | {scope: path for scope, path in fixed.items() if os.path.isdir(path)}

    def rotated_log(self, day: date, part: int = 0) -> str:
        """Return the path of a rotated log. The log is rotated when it is too large and when the day is over."""
        return f"{self.logs}/events-{day:%Y%m%d}{f'.{part}' if part else ''}.log"

    def rotated_logs(self) -> list[str]:
        """Return the rotated logs, sorted by name."""
        return _plain_files(self.logs, _ROTATED_LOG)

    def archive_files(self, stream: str) -> list[str]:
        """Return the archive files of a stream, sorted by day."""
        return _plain_files(f"{self.stream(stream)}/done", _DAY)

    def archive_id_indexes(self, stream: str) -> list[str]:
        """Return the id indexes of the archive files of a stream, sorted by day."""
        return _plain_files(f"{self.stream(stream)}/done-ids", _INDEX)

    def record(self, directory: str, record_id: str) -> str:
        """Return the file of a record in the directory of its state."""
        return f"{self.root}/{directory}/{self.record_name(directory, record_id)}"

    @staticmethod
    def record_name(directory: str, record_id: str) -> str:
        """Return the file name of a record."""
        name = file_name(record_id)
        return name if f"{directory}/{name}" in _WITHOUT_SUFFIX else f"{name}{_SUFFIX}"

    @staticmethod
    def is_record_name(directory: str, name: str) -> bool:
        """Return whether a file name can belong to a record."""
        return name.endswith(_SUFFIX) or f"{directory}/{name}" in _WITHOUT_SUFFIX

    @staticmethod
    def record_directories(kind: RecordKind) -> tuple[str, ...]:
        """Return the directories of the records of a kind."""
        return tuple(dict.fromkeys(kind.directories.values()))

    def rejected(self, kind: RecordKind, state: str) -> str:
        """Return the directory for dropped files that were rejected."""
        return f"{os.path.dirname(f'{self.root}/{kind.directories[state]}')}/rejected"

    def check_kinds(self, kinds: Iterable[RecordKind]) -> None:
        """Refuse kinds whose directories overlap, leave the root, or belong to the store itself."""
        owners: dict[str, str] = {}
        for kind in kinds:
            for directory in dict.fromkeys(kind.directories.values()):
                parts = directory.split("/")
                if directory.startswith("/") or {"", ".", ".."} & set(parts) or "\x00" in directory:
                    raise Misconfigured(f"record kind {kind.name!r}: {directory!r} is no path below the root")
                if parts[0] == "bus":
                    raise Misconfigured(f"record kind {kind.name!r}: {directory!r} is reserved for the bus")
                owner = owners.setdefault(directory.casefold(), kind.name)
                if owner != kind.name:
                    raise Misconfigured(f"record kinds {owner!r} and {kind.name!r} share the directory {directory!r}")
