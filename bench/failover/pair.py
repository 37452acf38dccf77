"""A primary and its standby at two fixed addresses. Clients find the primary themselves."""

import signal
import time
from types import TracebackType
from typing import LiteralString, Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bench.postgres import PrivateCluster
from bench.servers import PATIENCE_SECONDS, SERVER_USER, ServerUnavailableError, until

_DATABASE = "failover"
_STANDBYS = "synchronous_standby_names"
_STREAMING: LiteralString = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
_SYNCHRONOUS: LiteralString = _STREAMING + " AND sync_state = 'sync'"


class Pair:
    """Two private servers, one of them the primary. With `synchronous`, commits wait for both."""

    def __init__(self, *, synchronous: bool) -> None:
        self._synchronous = synchronous
        self._primary, self._standby = (
            PrivateCluster(shared_buffers="64MB", ignore_database_url=True) for _ in range(2)
        )
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self._primary.start()
            self._primary.create_database(_DATABASE)
            self.replace_standby()
        except BaseException:
            self._stop()
            raise
        ports = [conninfo_to_dict(server.dsn)["port"] for server in (self._primary, self._standby)]
        hosts = [conninfo_to_dict(server.dsn)["host"] for server in (self._primary, self._standby)]
        self.url = make_conninfo(
            host=",".join(map(str, hosts)),
            port=",".join(map(str, ports)),
            user=SERVER_USER,
            dbname=_DATABASE,
            target_session_attrs="read-write",
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def fail_over(self) -> int:
        """Kill the primary, promote its standby, and return the time of the promotion in nanoseconds."""
        self._primary.crash(signal.SIGKILL)
        self._primary, self._standby = self._standby, self._primary
        asked = time.monotonic_ns()
        self._primary.promote()
        return asked

    def detach(self) -> None:
        """Stop replication, so that later commits are lost with the primary."""
        self._primary.configure(_STANDBYS, None)
        self._standby.configure("primary_conninfo", "")

    def replace_standby(self) -> None:
        """Build a standby as a copy of the primary, and wait until it has every commit."""
        # `synchronous_standby_names` is set only when the standby runs. Without a standby no commit would end, and the
        # standby must not copy the setting.
        self._standby.follow(self._primary)
        if not self._synchronous:
            self._wait_for(_STREAMING)
            return
        self._primary.configure(_STANDBYS, "*")
        self._wait_for(_SYNCHRONOUS)
        # When this commit has reached the standby, all earlier commits have too.
        self._primary.ask("SELECT txid_current()")

    def _wait_for(self, question: LiteralString) -> None:
        for _ in until(PATIENCE_SECONDS):
            if self._primary.ask(question) == 1:
                return
        raise ServerUnavailableError("the standby does not receive the commits of its primary")

    def _stop(self) -> None:
        self._standby.stop()
        self._primary.stop()
