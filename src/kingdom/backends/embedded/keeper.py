"""The process that keeps an embedded server running while somebody uses it: `python -m … DIRECTORY ACCOUNT`.

Whoever starts it is told when the server is ready, or why there is none; it goes on by itself, in a session of its own.
When nobody holds the shared lock any more, however they ended, it waits a moment, stops the server and ends.
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
_LOOK_SECONDS = 0.2
_LOG_MAX = 1 << 20


def main() -> None:
    """Start a keeper, and pass on its first word."""
    directory, account = sys.argv[1:]
    heard, tell = os.pipe()
    if os.fork():
        os.close(tell)
        with os.fdopen(heard, encoding="utf-8") as pipe:
            code, _, words = pipe.read().partition(" ")
        sys.stderr.write(words if code else "the keeper of the embedded server died")
        sys.exit(int(code) if code else UNAVAILABLE)
    os.close(heard)
    # Nothing that ends the one who asked may end us too.
    os.setsid()
    os.umask(0o077)
    os.chdir("/")
    _ServerKeeper(ServerDirectory(Path(directory), account), tell).keep()


class _ServerKeeper:
    """Keeps one server; `tell` is where the one who asked listens."""

    def __init__(self, place: ServerDirectory, tell: int) -> None:
        self._place = place
        self._tell_to = tell
        self._is_hurried = False

    def keep(self) -> None:
        """Keep the server until nobody uses it; nothing to do where another one does."""
        signal.signal(signal.SIGTERM, self._hurry)
        with open_lock(self._place.keeper) as lock, open_lock(self._place.users) as users:
            if not try_lock(lock, fcntl.LOCK_EX):
                self._tell(os.EX_OK)
                return
            self._let_go_of_terminal()
            server = EmbeddedServer(self._place)
            try:
                if self._is_started(server):
                    self._until_unused(server, users)
                    server.stop()
                    server.remove_socket()
            finally:
                server.stop()

    def _is_started(self, server: EmbeddedServer) -> bool:
        try:
            server.start()
        except Exception as error:  # noqa: BLE001 - whoever asked shall hear of it
            self._tell(MISCONFIGURED if isinstance(error, Misconfigured) else UNAVAILABLE, str(error))
            return False
        self._tell(os.EX_OK)
        return True

    def _until_unused(self, server: EmbeddedServer, users: IO[bytes]) -> None:
        """Start the server again when it dies, until nobody uses it; nobody new can come in when this returns."""
        alone_since: float | None = None
        while True:
            if not try_lock(users, fcntl.LOCK_EX):
                alone_since = None
                if server.has_ended():
                    server.start()
            elif alone_since is not None and self._is_over(alone_since, users):
                return
            else:
                fcntl.flock(users, fcntl.LOCK_UN)
                alone_since = alone_since or time.monotonic()
            time.sleep(_LOOK_SECONDS)

    def _is_over(self, alone_since: float, users: IO[bytes]) -> bool:
        is_removed = os.fstat(users.fileno()).st_nlink == 0
        return self._is_hurried or is_removed or time.monotonic() - alone_since >= GRACE_SECONDS

    def _hurry(self, *_: object) -> None:
        self._is_hurried = True

    def _tell(self, code: int, words: str = "") -> None:
        # Who asked may be gone; others may still come.
        with suppress(BrokenPipeError):
            os.write(self._tell_to, f"{code} {words}".encode())
        os.close(self._tell_to)

    def _let_go_of_terminal(self) -> None:
        """Hear nothing, and say everything into the log from now on."""
        log = self._place.log
        is_long = log.exists() and log.stat().st_size > _LOG_MAX
        with log.open("wb" if is_long else "ab") as written, Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(written.fileno(), 1)
            os.dup2(written.fileno(), 2)


if __name__ == "__main__":
    main()
