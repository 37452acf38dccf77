"""The keeper: a background process that runs an embedded server (`python -m … DIRECTORY ACCOUNT`).

The keeper first reports to its caller that the server is ready, or why it did not start. Each process that uses the
server holds a shared lock on `users.lock`. When no process holds it, the keeper waits a moment, stops the server and
ends.
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

# A server without users runs on for this time, because the next command often follows soon.
GRACE_SECONDS = 3.0
_POLL_SECONDS = 0.2
# If the log is larger, a new keeper empties it.
_LOG_MAX_BYTES = 1 << 20


def main() -> None:
    """Start a keeper in the background, wait for its report, and exit with the code in the report."""
    directory, account = sys.argv[1:]
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as pipe:
            code, _, message = pipe.read().partition(" ")
        sys.stderr.write(message if code else "the keeper of the embedded server died")
        sys.exit(int(code) if code else UNAVAILABLE)
    os.close(reading)
    # In its own session, the keeper gets no signals from the terminal of the caller.
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
        with open_lock(self._directory.keeper_lock) as lock, open_lock(self._directory.users_lock) as users:
            if not try_lock(lock, fcntl.LOCK_EX):
                self._report(os.EX_OK)
                return
            self._redirect_to_log()
            server = EmbeddedServer(self._directory)
            try:
                if self._try_start(server):
                    self._wait_until_unused(server, users)
                    server.stop()
                    server.remove_socket()
            finally:
                server.stop()

    def _try_start(self, server: EmbeddedServer) -> bool:
        try:
            server.start()
        except Exception as error:  # noqa: BLE001 - the caller must see every error
            self._report(MISCONFIGURED if isinstance(error, Misconfigured) else UNAVAILABLE, str(error))
            return False
        self._report(os.EX_OK)
        return True

    def _wait_until_unused(self, server: EmbeddedServer, users: IO[bytes]) -> None:
        """Restart the server when it dies. Return when no process uses it, with a lock that makes new users wait."""
        unused_since: float | None = None
        while True:
            if not try_lock(users, fcntl.LOCK_EX):
                # A user of the server holds the shared lock.
                unused_since = None
                if server.has_ended():
                    server.start()
            elif unused_since is not None and self._may_end(unused_since, users):
                return
            else:
                fcntl.flock(users, fcntl.LOCK_UN)
                unused_since = unused_since or time.monotonic()
            time.sleep(_POLL_SECONDS)

    def _may_end(self, unused_since: float, users: IO[bytes]) -> bool:
        is_removed = os.fstat(users.fileno()).st_nlink == 0
        return self._must_stop or is_removed or time.monotonic() - unused_since >= GRACE_SECONDS

    def _request_stop(self, *_: object) -> None:
        self._must_stop = True

    def _report(self, code: int, message: str = "") -> None:
        # If the caller has ended, the keeper continues for other users of the server.
        with suppress(BrokenPipeError):
            os.write(self._report_to, f"{code} {message}".encode())
        os.close(self._report_to)

    def _redirect_to_log(self) -> None:
        """Connect standard input to /dev/null, and standard output and standard error to the log."""
        path = self._directory.log
        is_too_long = path.exists() and path.stat().st_size > _LOG_MAX_BYTES
        with path.open("wb" if is_too_long else "ab") as log, Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)


if __name__ == "__main__":
    main()
