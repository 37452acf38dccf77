"""Tools to start private servers: find a binary and a free port, choose a user, create a temporary directory."""

import contextlib
import fcntl
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

LOOPBACK = "127.0.0.1"
SERVER_USER = "postgres"
DIRECTORY_PREFIX = "kingdom-server-"
OWNER_FILE = "owner"
# No operation of a server takes longer, even on a busy machine.
PATIENCE_SECONDS = 300
# A directory of this age belongs to a process that has locked it or has ended.
ABANDONED_SECONDS = 60
FIRST_PORT = 10_000
PORTS_OF_A_PART = 100
PORT_PARTS = 200

_port_numbers = itertools.count()


class ServerUnavailableError(RuntimeError):
    """Raised when a private server cannot be started or does not stop."""


def exit_on_sigterm() -> None:
    """Let SIGTERM end this program as Ctrl-C does, so that it ends its servers and processes and removes its files.

    Ctrl-C then ends the program even if a shell has started it in the background.
    """
    # On SIGINT, asyncio.run cancels only the main task, so that its cleanup can still wait for other tasks. This needs
    # Python's own handler of SIGINT, which a program in the background of a shell does not have.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    received = False

    def interrupt_once(*_: object) -> None:
        nonlocal received
        # Some programs send SIGTERM twice, such as timeout(1), and the second one would interrupt the cleanup.
        if not received:
            received = True
            signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, interrupt_once)


class PrivateDirectory:
    """A temporary directory of the server's user. If this process is killed, a later one removes the directory.

    A server that accepts root needs no other user (`as_server_user`).
    """

    def __init__(self, *, as_server_user: bool = True) -> None:
        self._changes_user = as_server_user and os.geteuid() == 0
        owner = _server_account() if self._changes_user else None
        _remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX))
        # The lock ends with this process, so a later process knows that it may remove the directory.
        self._lock = (self.path / OWNER_FILE).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if owner is not None:
            shutil.chown(self.path, *owner)

    def spawn(self, *argv: str | Path, log: Path) -> subprocess.Popen[bytes]:
        """Start a command as the server's user in this directory."""
        with log.open("wb") as output:
            return subprocess.Popen(
                self._command(argv),
                cwd=self.path,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def run(self, *argv: str | Path) -> None:
        """Run a command as the server's user in this directory, and wait for its end."""
        done = subprocess.run(
            self._command(argv),
            cwd=self.path,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            words = done.stderr.strip() or done.stdout.strip()
            raise ServerUnavailableError(f"{Path(argv[0]).name} failed: {words}")

    def remove(self) -> None:
        """Remove the directory and its content."""
        for _ in until(PATIENCE_SECONDS):
            # The last processes of a killed server may still write.
            shutil.rmtree(self.path, ignore_errors=True)
            if not self.path.exists():
                break
        self._lock.close()

    def _command(self, argv: tuple[str | Path, ...]) -> list[str]:
        # Most servers refuse to run as root.
        prefix = ["runuser", "-u", SERVER_USER, "--"] if self._changes_user else []
        return prefix + [str(argument) for argument in argv]


def find_binary(name: str) -> Path:
    """Return the path of a program in the newest installed PostgreSQL, else on PATH."""
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    for directory in sorted(versions, key=lambda path: int(path.parent.name), reverse=True):
        if (directory / name).is_file():
            return directory / name
    # Debian keeps daemons in sbin, which may not be on PATH.
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        package = "pgbouncer" if name == "pgbouncer" else "postgresql"
        raise ServerUnavailableError(
            f"{name} is not installed: run `apt-get install {package}`, or set DATABASE_URL to a server"
        )
    return Path(found)


def free_port() -> int:
    """Return a port that is free on every address, for a server that is started later or more than once.

    It is below the range from which the system assigns ports to connections. Each process searches its own part.
    """
    first = FIRST_PORT + os.getpid() % PORT_PARTS * PORTS_OF_A_PART
    for _ in range(PORTS_OF_A_PART):
        port = first + next(_port_numbers) % PORTS_OF_A_PART
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    raise ServerUnavailableError(f"all ports from {first} to {first + PORTS_OF_A_PART - 1} are in use")


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def end_process(pid: int, by: signal.Signals) -> None:
    """End a process by a signal, or by SIGKILL if it does not end in time."""
    for request in (by, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, request)
        for _ in until(PATIENCE_SECONDS):
            if not is_running(pid):
                return
    raise ServerUnavailableError(f"process {pid} does not end")


def until(seconds: float) -> Iterator[None]:
    """Yield every few milliseconds until the timeout."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.02)


def quoted(value: str) -> str:
    """Return a value quoted for the configuration files of PostgreSQL and PgBouncer."""
    return "'" + value.replace("'", "''") + "'"


def _environment() -> dict[str, str]:
    # PGDATA, PGPORT and similar variables would redirect the tools of the private server.
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def _server_account() -> tuple[int, int]:
    try:
        account = pwd.getpwnam(SERVER_USER)
    except KeyError:
        raise ServerUnavailableError(
            f"the servers refuse root and there is no user {SERVER_USER}: run `apt-get install postgresql`"
        ) from None
    return account.pw_uid, account.pw_gid


def _remove_abandoned() -> None:
    for owner in Path(tempfile.gettempdir()).glob(f"{DIRECTORY_PREFIX}*/{OWNER_FILE}"):
        with contextlib.suppress(OSError), owner.open("a") as lock:
            # A new directory may belong to a process that has not taken its lock yet.
            if time.time() - owner.stat().st_mtime < ABANDONED_SECONDS:
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _quit_servers_of(owner.parent)
            shutil.rmtree(owner.parent, ignore_errors=True)


def _quit_servers_of(directory: Path) -> None:
    # Recorded pids may belong to other processes by now, so find the servers by the directory in their command line.
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{directory}/".encode() in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGQUIT)
