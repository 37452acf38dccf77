"""One run of PostgreSQL in a place: made if it is new, started, and stopped."""

import ctypes
import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from kingdom.backends.embedded.programs import PostgresPrograms, programs_for, reachable_programs, serving_account
from kingdom.backends.embedded.server_directory import PORT, ROLE, SOCKET_NAME, ServerDirectory, open_lock, try_lock
from kingdom.errors import Unavailable

_NEW = "new-"
_SOCKET_PREFIX = "kingdom-postgres-"
_MAKE_SECONDS, _START_SECONDS, _STOP_SECONDS, _QUIT_SECONDS = 120.0, 120.0, 30.0, 10.0
_NAP_SECONDS = 0.02
_LAST_WORDS = 1500
_PR_SET_PDEATHSIG = 1
# What a person may change in postgresql.conf; everything else has PostgreSQL's own default.
_SETTINGS = {"timezone": "UTC", "log_timezone": "UTC", "log_checkpoints": "off"}


class EmbeddedServer:
    """PostgreSQL as our child; nobody but us and the account that runs it can reach its socket."""

    def __init__(self, place: ServerDirectory) -> None:
        self._place = place
        self._account: pwd.struct_passwd | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, made first if there is none yet; raises if it cannot be."""
        place, programs = self._place, programs_for(self._place)
        self._account = serving_account(place)
        if self._account:
            programs = reachable_programs(place, programs, self._account)
        with self._alone() as lock:
            self._disown()
            if not place.is_made:
                self._make(programs)
            self._make_socket_folder()
            begin = place.log.stat().st_size if place.log.exists() else 0
            self._launch(programs, lock)
        if not self._becomes_ready():
            raise Unavailable(f"the embedded PostgreSQL of {place.directory} does not start: {self._said_since(begin)}")

    def has_ended(self) -> bool:
        """Tell whether it runs no more."""
        return self._process is None or self._process.poll() is not None

    def stop(self) -> None:
        """Stop it, without waiting for clients."""
        if self._process:
            for request, seconds in ((signal.SIGINT, _STOP_SECONDS), (signal.SIGQUIT, _QUIT_SECONDS)):
                if self._process.poll() is None:
                    self._process.send_signal(request)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(seconds)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()

    def remove_socket(self) -> None:
        """Remove where it was reached; whoever still uses it would look in vain for another."""
        socket = self._place.socket
        with suppress(FileNotFoundError):
            if not socket.is_symlink():
                shutil.rmtree(socket)
                return
            folder = socket.readlink()
            if folder.name.startswith(_SOCKET_PREFIX) and self._is_emptied(folder):
                with suppress(OSError):
                    folder.rmdir()
            socket.unlink()

    def _make(self, programs: PostgresPrograms) -> None:
        """Make a new cluster beside its place, so that one that is half made is never taken for one."""
        for left in self._place.directory.glob(f"{_NEW}*"):
            shutil.rmtree(left, ignore_errors=True)
        new = Path(tempfile.mkdtemp(prefix=_NEW, dir=self._place.directory))
        self._give(new)
        settings = [word for name, value in _SETTINGS.items() for word in ("--set", f"{name}={value}")]
        local = ("--auth-local=trust", "--auth-host=reject", "--encoding=UTF8", "--locale=C", "--data-checksums")
        done = subprocess.run(  # noqa: S603 - a program of PostgreSQL
            [programs.initdb, f"--pgdata={new}", f"--username={ROLE}", *local, "--no-instructions", *settings],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_MAKE_SECONDS,
            cwd=new,
            preexec_fn=_die_with_parent(),
            **self._as_account(),
        )
        if done.returncode:
            shutil.rmtree(new, ignore_errors=True)
            raise Unavailable(
                f"initdb failed in {self._place.directory}: {(done.stderr or done.stdout)[-_LAST_WORDS:]}"
            )
        new.rename(self._place.data)
        # A loss of power must not take the whole store back.
        for folder in (self._place.directory, *self._place.directory.parents[:2]):
            _sync(folder)

    def _give(self, made: Path) -> None:
        """Give what we have just made to the account of the server."""
        if self._account:
            os.chown(made, self._account.pw_uid, self._account.pw_gid)

    def _make_socket_folder(self) -> None:
        place = self._place
        # Users know this one.
        if self._is_emptied(place.socket_file.parent):
            return
        self.remove_socket()
        if place.has_room_for_socket:
            place.socket.mkdir(mode=0o700)
            self._give(place.socket)
            return
        short = Path(tempfile.mkdtemp(prefix=_SOCKET_PREFIX))
        self._give(short)
        place.socket.symlink_to(short)

    def _is_emptied(self, folder: Path) -> bool:
        """Take away what a dead server has left in a folder; False, and nothing is done, where it is not the server's.

        The account of the server can put a link to anything in its place.
        """
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if os.fstat(descriptor).st_uid != (self._account.pw_uid if self._account else os.geteuid()):
                return False
            for name in os.listdir(descriptor):  # noqa: PTH208 - a path could lead elsewhere by now
                if name.startswith(SOCKET_NAME):
                    os.unlink(name, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        return True

    def _launch(self, programs: PostgresPrograms, lock: IO[bytes]) -> None:
        settings = {
            "listen_addresses": "",
            "port": str(PORT),
            "unix_socket_directories": str(self._place.socket_file.parent),
            "unix_socket_permissions": "0700",
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self._place.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the server itself
                [programs.postgres, "-D", str(self._place.data), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._place.data,
                pass_fds=[lock.fileno()],
                preexec_fn=_die_with_parent(),  # noqa: PLW1509 - the keeper has one thread
                **self._as_account(),
            )

    def _becomes_ready(self) -> bool:
        """Wait until it is ready; False where it ends before, or takes too long."""
        for _ in _until(_START_SECONDS):
            if self.has_ended():
                return False
            if self._process and self._place.server_pid() == self._process.pid and self._place.is_ready():
                return True
        self.stop()
        return False

    @contextmanager
    def _alone(self) -> Iterator[IO[bytes]]:
        """Yield the lock that a server inherits, when no other one has it: neither it nor a child of it lives then."""
        with open_lock(self._place.server) as lock:
            for request, seconds in ((signal.SIGINT, _STOP_SECONDS), (signal.SIGQUIT, _QUIT_SECONDS)):
                if try_lock(lock, fcntl.LOCK_EX):
                    break
                pid = self._place.server_pid()
                if pid:
                    with suppress(ProcessLookupError):
                        os.kill(pid, request)
                        # A stopped one hears nothing.
                        os.kill(pid, signal.SIGCONT)
                if any(try_lock(lock, fcntl.LOCK_EX) for _ in _until(seconds)):
                    break
            else:
                raise Unavailable(
                    f"another server has {self._place.directory} and does not end: see `ps -ef | grep postgres`"
                )
            yield lock

    def _disown(self) -> None:
        """Take a dead server out of the file that names it, since its number may be that of another process by now.

        PostgreSQL does not start beside a process that it takes for a server, but does if that is its own parent. The
        rest of the file stays: by it a new server finds memory that the dead one has left.
        """
        with suppress(FileNotFoundError):
            # The file is the account's, and must not lead us elsewhere.
            descriptor = os.open(self._place.pid_file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, "r+b") as file:
                rest = file.read().partition(b"\n")[2]
                file.seek(0)
                file.write(b"%d\n%s" % (os.getpid(), rest))
                file.truncate()

    def _as_account(self) -> dict[str, Any]:
        # Variables such as PGPORT or LC_ALL would make another server of it.
        own: dict[str, Any] = {"env": {"LC_ALL": "C", "PATH": os.defpath}}
        if self._account:
            own |= {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": ()}
        return own

    def _said_since(self, begin: int) -> str:
        with self._place.log.open("rb") as log:
            log.seek(begin)
            return log.read().decode(errors="replace").strip()[-_LAST_WORDS:]


def _die_with_parent() -> Any:
    """Return what makes a child shut down when its parent dies, where the system can do that."""
    if sys.platform != "linux":
        return None
    library, parent = ctypes.CDLL(None), os.getpid()

    def before() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
        if os.getppid() != parent:
            os._exit(1)

    return before


def _sync(folder: Path) -> None:
    # Some above ours may be closed to us; those are older than the store.
    with suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _until(seconds: float) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(_NAP_SECONDS)
