"""The directory of an embedded server: its files and locks, and the account that runs the server.

The keeper is the process that starts the server, and stops it when no process uses it any more.
"""

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
# The names of PostgreSQL's socket and of the lock file beside it begin with this.
SOCKET_NAME = ".s.PGSQL."
ROLE = "kingdom"
DATABASE = "postgres"
# Exit codes of a keeper that cannot start a server.
UNAVAILABLE, MISCONFIGURED = 1, 2
# The index of the line in postmaster.pid that contains the state of the server.
_STATUS_LINE = 7
# PostgreSQL refuses to run as root. If root starts the server, it runs as the first existing account of these.
_ACCOUNTS = ("postgres", "nobody")
# The longest socket path that every system allows, in bytes. The limit is 104 or 108 bytes, including the final NUL.
_SOCKET_PATH_MAX = 103
# Other characters, such as a comma, have a special meaning in the setting `unix_socket_directories`.
_PLAIN_PATH = re.compile(rb"[\w./+-]+")


@dataclass(frozen=True, slots=True)
class ServerDirectory:
    """The directory of an embedded server. If root uses it, the server runs as the user `account`."""

    path: Path
    account: str = ""

    @property
    def data(self) -> Path:
        """Return the data directory of PostgreSQL."""
        return self.path / "data"

    @property
    def pid_file(self) -> Path:
        """Return the file with the process id and the state of the server."""
        return self.data / "postmaster.pid"

    @property
    def socket(self) -> Path:
        """Return the path of the socket directory, or of a link to it. The keeper removes it when it ends."""
        return self.path / "socket"

    @property
    def programs(self) -> Path:
        """Return the directory for copies of the programs. The account uses them if it cannot run the originals."""
        return self.path / "programs"

    @property
    def log(self) -> Path:
        """Return the log file of the server."""
        return self.path / "server.log"

    @property
    def users_lock(self) -> Path:
        """Return the file on which each user of the server holds a shared lock."""
        return self.path / "users.lock"

    @property
    def keeper_lock(self) -> Path:
        """Return the file on which the keeper holds a lock."""
        return self.path / "keeper.lock"

    @property
    def server_lock(self) -> Path:
        """Return the file on which the server and all its children hold a lock."""
        return self.path / "server.lock"

    @property
    def is_created(self) -> bool:
        """Return whether the data directory exists."""
        return self.data.exists()

    @property
    def socket_file(self) -> Path:
        """Return the path of the socket file, without the link that may lead to its directory."""
        folder = self.socket.readlink() if self.socket.is_symlink() else self.socket
        return folder / f"{SOCKET_NAME}{PORT}"

    @property
    def fits_socket(self) -> bool:
        """Return whether the path of a socket in this directory is short and plain enough."""
        path = os.fsencode(self.socket / f"{SOCKET_NAME}{PORT}")
        return len(path) <= _SOCKET_PATH_MAX and bool(_PLAIN_PATH.fullmatch(path))

    def server_pid(self) -> int | None:
        """Return the process id of the running server, or None."""
        try:
            pid = int(self._read_pid_file()[0])
            # Another process may have this id by now, but only the server has this working directory.
            return pid if psutil.Process(pid).cwd() == str(self.data.resolve()) else None
        except (ValueError, IndexError, psutil.Error):
            return None

    def is_ready(self) -> bool:
        """Return whether the last started server has reported that it is ready."""
        return [line.strip() for line in self._read_pid_file()[_STATUS_LINE:]] == ["ready"]

    def _read_pid_file(self) -> list[str]:
        try:
            return self.pid_file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []

    def has_keeper(self) -> bool:
        """Return whether a keeper runs."""
        try:
            with self.keeper_lock.open("rb") as file:
                return not try_lock(file, fcntl.LOCK_SH)
        except FileNotFoundError:
            return False

    def check_usable(self) -> None:
        """Raise Misconfigured if another user owns the directory, or if it has files but no server."""
        try:
            owner = self.path.stat().st_uid
            inside = {path.name for path in self.path.iterdir()}
        except FileNotFoundError:
            return
        except OSError as error:
            raise Misconfigured(f"cannot read {self.path}: {error.strerror}: use another directory") from error
        if owner != os.geteuid():
            raise Misconfigured(
                f"{self.path} belongs to {_name_of(owner)}, and an embedded server serves only its owner:"
                " run this as that user, or use another directory"
            )
        if inside and self.users_lock.name not in inside:
            raise Misconfigured(f"{self.path} is not empty and contains no embedded server: use a new directory")


def open_lock(path: Path) -> IO[bytes]:
    """Open a lock file that only its owner can access."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")


def try_lock(file: IO[bytes], kind: int) -> bool:
    """Lock an open file; return False if another process has locked it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def account_of(directory: ServerDirectory) -> pwd.struct_passwd | None:
    """Return the account that must run the server, or None if the current user runs it.

    If the data directory exists, its owner is the account.
    """
    if os.geteuid() != 0:
        return None
    if directory.is_created:
        return _account_by_id(directory.data.stat().st_uid)
    for name in (directory.account,) if directory.account else _ACCOUNTS:
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        if account.pw_uid == 0:
            break
        return account
    raise Misconfigured(
        f"PostgreSQL does not run as root, and {directory.account or ' or '.join(_ACCOUNTS)} cannot run it: name"
        " an account as embedded:DIRECTORY?account=NAME, or do not run this as root"
    )


def _account_by_id(owner: int) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(owner)
    except KeyError:
        raise Misconfigured(
            f"the data of the embedded server belongs to user id {owner}, which has no account here: create an account"
            " with this id, or run this on a machine that has such an account"
        ) from None


def _name_of(owner: int) -> str:
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return f"user id {owner}"
