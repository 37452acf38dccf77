"""The keeper: the process that runs an embedded server while it is used (`python -m … DIRECTORY ACCOUNT`).

It reports to its caller when the server is ready, or why it did not start. Then it continues in its own session. When
no process holds the shared lock any longer, it waits a moment, stops the server and ends.
"""

import fcntl
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from kingdom.backends.embedded.server import EmbeddedServer
from kingdom.backends.embedded.server_directory import MISCONFIGURED, UNAVAILABLE, ServerDirectory, open_lock, try_lock
from kingdom.errors import Misconfigured

GRACE_SECONDS = 3.0
_POLL_SECONDS = 0.2
_LOG_MAX = 1 << 20


def main() -> None:
    """Start a keeper and exit with its first report."""
    directory, account = sys.argv[1:]
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as pipe:
            code, _, message = pipe.read().partition(" ")
        sys.stderr.write(message if code else "the keeper of the embedded server died")
        sys.exit(int(code) if code else UNAVAILABLE)
    os.close(reading)
    # A new session: signals to the terminal of the caller must not end the keeper.
    os.setsid()
    os.umask(0o077)
    os.chdir("/")
    _ServerKeeper(ServerDirectory(Path(directory), account), writing).keep()


class _ServerKeeper:
    """Runs one server, and reports its start to a pipe."""

    def __init__(self, directory: ServerDirectory, report_to: int) -> None:
        self._directory = directory
        self._report_to = report_to
        self._must_stop = False

    def keep(self) -> None:
        """Run the server until it is unused. Do nothing if another keeper runs it."""
        signal.signal(signal.SIGTERM, self._request_stop)
        with open_lock(self._directory.keeper) as lock, open_lock(self._directory.users) as users:
            if not try_lock(lock, fcntl.LOCK_EX):
                self._report(os.EX_OK)
                return
            self._redirect_to_log()
            server = EmbeddedServer(self._directory)
            try:
                if self._is_started(server):
                    self._wait_until_unused(server, users)
                    server.stop()
                    server.remove_socket()
            finally:
                server.stop()

    def _is_started(self, server: EmbeddedServer) -> bool:
        try:
            server.start()
        except Exception as error:  # noqa: BLE001 - the caller must see every error
            self._report(MISCONFIGURED if isinstance(error, Misconfigured) else UNAVAILABLE, str(error))
            return False
        self._report(os.EX_OK)
        return True

    def _wait_until_unused(self, server: EmbeddedServer, users: IO[bytes]) -> None:
        """Restart the server when it dies, until it is unused. When this returns, new users must wait."""
        unused_since: float | None = None
        while True:
            if not try_lock(users, fcntl.LOCK_EX):
                unused_since = None
                if server.has_ended():
                    server.start()
            elif unused_since is not None and self._is_over(unused_since, users):
                return
            else:
                fcntl.flock(users, fcntl.LOCK_UN)
                unused_since = unused_since or time.monotonic()
            time.sleep(_POLL_SECONDS)

    def _is_over(self, unused_since: float, users: IO[bytes]) -> bool:
        is_removed = os.fstat(users.fileno()).st_nlink == 0
        return self._must_stop or is_removed or time.monotonic() - unused_since >= GRACE_SECONDS

    def _request_stop(self, *_: object) -> None:
        self._must_stop = True

    def _report(self, code: int, message: str = "") -> None:
        # The caller may have ended, but other users may come.
        with suppress(BrokenPipeError):
            os.write(self._report_to, f"{code} {message}".encode())
        os.close(self._report_to)

    def _redirect_to_log(self) -> None:
        """Read from nothing, and write all output to the log from now on."""
        log = self._directory.log
        is_long = log.exists() and log.stat().st_size > _LOG_MAX
        with log.open("wb" if is_long else "ab") as written, Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(written.fileno(), 1)
            os.dup2(written.fileno(), 2)


if __name__ == "__main__":
    main()
