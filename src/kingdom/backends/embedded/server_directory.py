"""Where everything of an embedded server lies, and who may use it."""

import fcntl
import os
import pwd
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from kingdom.errors import Misconfigured

PORT = 5432
# PostgreSQL calls its socket and the lock of it so.
SOCKET_NAME = ".s.PGSQL."
ROLE = "kingdom"
DATABASE = "postgres"
# How a keeper ends that could not start a server.
UNAVAILABLE, MISCONFIGURED = 1, 2
# The line of the file of its process in which PostgreSQL tells how far it has come.
_STATUS_LINE = 7
# PostgreSQL does not run as root; the first of these that exists runs it then.
_ACCOUNTS = ("postgres", "nobody")
# An address of a socket has 108 bytes on Linux and 104 elsewhere.
_SOCKET_PATH_MAX = 103
# Others mean something to PostgreSQL in a list of directories.
_PLAIN = re.compile(rb"[\w./+-]+")


@dataclass(frozen=True, slots=True)
class ServerDirectory:
    """A directory that holds an embedded server; only root needs an `account`, under which the server runs."""

    directory: Path
    account: str = ""

    @property
    def data(self) -> Path:
        """Return the directory of PostgreSQL itself."""
        return self.directory / "data"

    @property
    def pid_file(self) -> Path:
        """Return where PostgreSQL tells its process."""
        return self.data / "postmaster.pid"

    @property
    def socket(self) -> Path:
        """Return the directory of the socket, or the link to it; it is there only while a server runs."""
        return self.directory / "socket"

    @property
    def programs(self) -> Path:
        """Return where copies of the programs lie, if the account cannot reach the installed ones."""
        return self.directory / "programs"

    @property
    def log(self) -> Path:
        """Return what the server has to say."""
        return self.directory / "server.log"

    @property
    def users(self) -> Path:
        """Return the file on which whoever uses the server holds a shared lock."""
        return self.directory / "users.lock"

    @property
    def keeper(self) -> Path:
        """Return the file on which the one that keeps the server running holds a lock."""
        return self.directory / "keeper.lock"

    @property
    def server(self) -> Path:
        """Return the file on which the server and all its children hold a lock."""
        return self.directory / "server.lock"

    @property
    def is_made(self) -> bool:
        """Tell whether a server was ever made here."""
        return self.data.exists()

    @property
    def socket_file(self) -> Path:
        """Return where the server is reached, the shorter way if the directory has a long name."""
        folder = self.socket.readlink() if self.socket.is_symlink() else self.socket
        return folder / f"{SOCKET_NAME}{PORT}"

    @property
    def has_room_for_socket(self) -> bool:
        """Tell whether a socket in the directory itself would have an address that fits."""
        path = os.fsencode(self.socket / f"{SOCKET_NAME}{PORT}")
        return len(path) <= _SOCKET_PATH_MAX and bool(_PLAIN.fullmatch(path))

    def server_pid(self) -> int | None:
        """Return the process of the server that runs here, if one does and can be seen."""
        try:
            pid = int(self._told_by_server()[0])
            # The number may be somebody else's by now; no other program works in that directory.
            return pid if psutil.Process(pid).cwd() == str(self.data.resolve()) else None
        except (ValueError, IndexError, psutil.Error):
            return None

    def is_ready(self) -> bool:
        """Tell whether the last server that was started has said that it is ready."""
        return [line.strip() for line in self._told_by_server()[_STATUS_LINE:]] == ["ready"]

    def _told_by_server(self) -> list[str]:
        try:
            return self.pid_file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []

    def has_keeper(self) -> bool:
        """Tell whether somebody keeps the server running."""
        try:
            with self.keeper.open("rb") as file:
                return not try_lock(file, fcntl.LOCK_SH)
        except FileNotFoundError:
            return False

    def refuse_if_not_ours(self) -> None:
        """Refuse a directory of another user, and one in which something else lies."""
        try:
            owner = self.directory.stat().st_uid
            inside = {path.name for path in self.directory.iterdir()}
        except FileNotFoundError:
            return
        except OSError as error:
            raise Misconfigured(f"{self.directory} cannot be read: {error.strerror}: name another directory") from error
        if owner != os.geteuid():
            raise Misconfigured(
                f"{self.directory} belongs to {_name_of(owner)}, and an embedded server serves one user:"
                " run this as that user, or name another directory"
            )
        if inside and self.users.name not in inside:
            raise Misconfigured(
                f"{self.directory} is not empty, and no embedded server has made it: name a directory of its own"
            )


def open_lock(path: Path) -> IO[bytes]:
    """Open a file to lock, which nobody else can."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")


def try_lock(file: IO[bytes], kind: int) -> bool:
    """Take a lock on an open file, unless another one is in the way."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def account_of(place: ServerDirectory) -> pwd.struct_passwd | None:
    """Return the account that runs the server, or None where it is our own; what was made keeps its owner."""
    if os.geteuid() != 0:
        return None
    if place.is_made:
        return _account_of_number(place.data.stat().st_uid)
    for name in (place.account,) if place.account else _ACCOUNTS:
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        if account.pw_uid == 0:
            break
        return account
    raise Misconfigured(
        f"PostgreSQL does not run as root, and {place.account or ' or '.join(_ACCOUNTS)} is no account that could run"
        " it: name one as embedded:DIRECTORY?account=NAME, or do not run this as root"
    )


def _account_of_number(owner: int) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(owner)
    except KeyError:
        raise Misconfigured(
            f"the data of the embedded server belongs to user number {owner}, which has no account here: make one of"
            " this number, or run this where it has one"
        ) from None


def _name_of(owner: int) -> str:
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return f"user number {owner}"
