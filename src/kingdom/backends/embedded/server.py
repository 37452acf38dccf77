"""Create, start and stop the PostgreSQL server of a directory."""

import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from kingdom.backends.embedded.programs import PostgresPrograms, programs_for, reachable_programs, serving_account
from kingdom.backends.embedded.server_directory import PORT, ROLE, SOCKET_NAME, ServerDirectory, open_lock, try_lock
from kingdom.errors import Unavailable
from kingdom.parent_death import ending_with_parent

_NEW_PREFIX = "new-"
_SOCKET_PREFIX = "kingdom-postgres-"
# How long initdb, a start, a fast shutdown (SIGINT) and an immediate shutdown (SIGQUIT) may take.
_CREATE_SECONDS, _START_SECONDS, _STOP_SECONDS, _QUIT_SECONDS = 120.0, 120.0, 30.0, 10.0
_SLEEP_SECONDS = 0.02
# An error message quotes this many characters from the end of the log.
_LOG_TAIL = 1500
# The first settings in postgresql.conf, which the user may edit. All other settings have the defaults of PostgreSQL.
_SETTINGS = {"timezone": "UTC", "log_timezone": "UTC", "log_checkpoints": "off"}


class EmbeddedServer:
    """PostgreSQL as a child process. Only this user and the account that runs the server can reach its socket."""

    def __init__(self, directory: ServerDirectory) -> None:
        self._directory = directory
        self._account: pwd.struct_passwd | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server, creating its data first if needed."""
        directory, programs = self._directory, programs_for(self._directory)
        self._account = serving_account(directory)
        if self._account:
            programs = reachable_programs(directory, programs, self._account)
        with self._hold_server_lock() as lock:
            self._replace_pid()
            if not directory.is_created:
                self._create(programs)
            self._make_socket_folder()
            begin = directory.log.stat().st_size if directory.log.exists() else 0
            self._launch(programs, lock)
        if not self._becomes_ready():
            raise Unavailable(f"the embedded PostgreSQL of {directory.path} does not start: {self._log_since(begin)}")

    def has_ended(self) -> bool:
        """Return whether the server has ended."""
        return self._process is None or self._process.poll() is not None

    def stop(self) -> None:
        """Stop the server without waiting for clients."""
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
        """Remove the socket directory of a stopped server."""
        socket = self._directory.socket
        with suppress(FileNotFoundError):
            if not socket.is_symlink():
                shutil.rmtree(socket)
                return
            folder = socket.readlink()
            if folder.name.startswith(_SOCKET_PREFIX) and self._clear_sockets(folder):
                with suppress(OSError):
                    folder.rmdir()
            socket.unlink()

    def _create(self, programs: PostgresPrograms) -> None:
        """Create a cluster under a temporary name, so that an incomplete cluster is never used."""
        for leftover in self._directory.path.glob(f"{_NEW_PREFIX}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        new = Path(tempfile.mkdtemp(prefix=_NEW_PREFIX, dir=self._directory.path))
        self._chown(new)
        settings = [word for name, value in _SETTINGS.items() for word in ("--set", f"{name}={value}")]
        local = ("--auth-local=trust", "--auth-host=reject", "--encoding=UTF8", "--locale=C", "--data-checksums")
        done = subprocess.run(  # noqa: S603 - a program of PostgreSQL
            [programs.initdb, f"--pgdata={new}", f"--username={ROLE}", *local, "--no-instructions", *settings],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_CREATE_SECONDS,
            cwd=new,
            preexec_fn=_shutting_down_with_parent(),
            **self._as_account(),
        )
        if done.returncode:
            shutil.rmtree(new, ignore_errors=True)
            raise Unavailable(f"initdb failed in {self._directory.path}: {(done.stderr or done.stdout)[-_LOG_TAIL:]}")
        new.rename(self._directory.data)
        # A power loss must not undo the rename.
        for folder in (self._directory.path, *self._directory.path.parents[:2]):
            _sync(folder)

    def _chown(self, path: Path) -> None:
        """Make the account of the server the owner of a path."""
        if self._account:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _make_socket_folder(self) -> None:
        directory = self._directory
        # Keep an existing folder, because the processes that use the server have its path in their URL.
        if self._clear_sockets(directory.socket_file.parent):
            return
        self.remove_socket()
        if directory.fits_socket:
            directory.socket.mkdir(mode=0o700)
            self._chown(directory.socket)
            return
        short = Path(tempfile.mkdtemp(prefix=_SOCKET_PREFIX))
        self._chown(short)
        directory.socket.symlink_to(short)

    def _clear_sockets(self, folder: Path) -> bool:
        """Remove the sockets of a dead server from a folder. Return False if the folder is not the server's.

        The account of the server could replace the folder by a link, which must not be followed.
        """
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if os.fstat(descriptor).st_uid != (self._account.pw_uid if self._account else os.geteuid()):
                return False
            for name in os.listdir(descriptor):  # noqa: PTH208 - by descriptor, because the path may lead elsewhere by now
                if name.startswith(SOCKET_NAME):
                    os.unlink(name, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        return True

    def _launch(self, programs: PostgresPrograms, lock: IO[bytes]) -> None:
        settings = {
            "listen_addresses": "",
            "port": str(PORT),
            "unix_socket_directories": str(self._directory.socket_file.parent),
            "unix_socket_permissions": "0700",
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self._directory.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the server itself
                [programs.postgres, "-D", str(self._directory.data), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory.data,
                pass_fds=[lock.fileno()],
                preexec_fn=_shutting_down_with_parent(),  # noqa: PLW1509 - the keeper has one thread
                **self._as_account(),
            )

    def _becomes_ready(self) -> bool:
        """Wait until the server is ready; return False if it ends or takes too long."""
        for _ in _poll_for(_START_SECONDS):
            if self.has_ended():
                return False
            if self._process and self._directory.server_pid() == self._process.pid and self._directory.is_ready():
                return True
        self.stop()
        return False

    @contextmanager
    def _hold_server_lock(self) -> Iterator[IO[bytes]]:
        """Stop any other server of this directory, and yield the lock that the new server and its children inherit."""
        with open_lock(self._directory.server_lock) as lock:
            for request, seconds in ((signal.SIGINT, _STOP_SECONDS), (signal.SIGQUIT, _QUIT_SECONDS)):
                if try_lock(lock, fcntl.LOCK_EX):
                    break
                pid = self._directory.server_pid()
                if pid:
                    with suppress(ProcessLookupError):
                        os.kill(pid, request)
                        # A process that was stopped by SIGSTOP handles the signal only after SIGCONT.
                        os.kill(pid, signal.SIGCONT)
                if any(try_lock(lock, fcntl.LOCK_EX) for _ in _poll_for(seconds)):
                    break
            else:
                raise Unavailable(
                    f"another server uses {self._directory.path} and does not end: see `ps -ef | grep postgres`"
                )
            yield lock

    def _replace_pid(self) -> None:
        """Replace the process id of a dead server in postmaster.pid by the id of this process.

        Another process may have the old id by now. PostgreSQL does not start if a process with the id in this file
        exists, unless that process started it. The rest of the file stays, because PostgreSQL finds the shared memory
        of the dead server with it.
        """
        with suppress(FileNotFoundError):
            # The account of the server could replace the file by a link, which must not be followed.
            descriptor = os.open(self._directory.pid_file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, "r+b") as file:
                rest = file.read().partition(b"\n")[2]
                file.seek(0)
                file.write(b"%d\n%s" % (os.getpid(), rest))
                file.truncate()

    def _as_account(self) -> dict[str, Any]:
        """Return the arguments of `subprocess` that run a program under the account of the server."""
        # The program inherits no variables, because some of them, such as PGPORT, would change its settings.
        arguments: dict[str, Any] = {"env": {"LC_ALL": "C", "PATH": os.defpath}}
        if self._account:
            arguments |= {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": ()}
        return arguments

    def _log_since(self, begin: int) -> str:
        with self._directory.log.open("rb") as log:
            log.seek(begin)
            return log.read().decode(errors="replace").strip()[-_LOG_TAIL:]


def _shutting_down_with_parent() -> Callable[[], None]:
    return ending_with_parent(os.getpid(), signal.SIGINT)


def _sync(folder: Path) -> None:
    # A parent directory that we cannot open is older than the store, so it needs no sync.
    with suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _poll_for(seconds: float) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(_SLEEP_SECONDS)
