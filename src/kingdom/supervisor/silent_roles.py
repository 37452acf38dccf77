"""Restart roles whose process is running but sends no heartbeat."""

import asyncio
import socket
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from kingdom.bus.port import Bus
from kingdom.chronicle.catalog import to_log_entry
from kingdom.chronicle.events import HeartbeatMissed
from kingdom.clock import utc_now
from kingdom.court.chamberlain.records import CHAMBERLAIN
from kingdom.court.chamberlain.settings import ChamberlainSettings
from kingdom.court.heartbeat import last_heartbeats, list_heartbeats
from kingdom.errors import KingdomError
from kingdom.supervisor.processes import ProcessState, RoleProcesses

_CHECK_SECONDS = 2.0
# If two checks are further apart, heartbeats may have been missed, so the measurement of the silence starts again.
_GAP = timedelta(seconds=30)
_log = structlog.get_logger("kingdom.supervisor")


class SilentRoleRestarter:
    """Restarts silent roles of this machine. `store` is the directory of a file store, or None for a database.

    The Chamberlain logs a missed heartbeat first. If the role is still silent two rounds of the Chamberlain later, this
    class restarts it. The Chamberlain cannot log its own missed heartbeat, so this class does.
    """

    def __init__(
        self,
        bus: Bus,
        processes: RoleProcesses,
        settings: ChamberlainSettings,
        *,
        store: Path | None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._bus = bus
        self._processes = processes
        self._threshold_seconds = settings.heartbeat.threshold_seconds
        self._silence_max = timedelta(seconds=self._threshold_seconds + 2 * settings.every_seconds)
        self._store = store
        self._clock = clock
        self._checked_at = self._measured_since = clock()

    async def watch(self) -> None:
        """Check periodically until cancelled."""
        while True:
            try:
                await self.check()
            except (KingdomError, OSError) as error:
                _log.warning("cannot read the heartbeats, trying again", error=str(error))
            await asyncio.sleep(_CHECK_SECONDS)

    async def check(self) -> None:
        """Restart roles that were silent for too long."""
        heartbeats = await self._last_heartbeats()
        if self._processes.stopping:
            # A role that is stopping removes its heartbeat before its process ends, so it would look silent.
            return
        now = self._clock()
        if now - self._checked_at > _GAP:
            self._measured_since = now
        self._checked_at = now
        for role, child in self._processes.children.items():
            if child.state is not ProcessState.RUNNING or child.restart_requested or child.started_at is None:
                continue
            seen = max(heartbeats.get(role, child.started_at), child.started_at)
            if now - max(seen, self._measured_since) > self._silence_max:
                await self._restart(role, seen)

    async def _restart(self, role: str, seen: datetime) -> None:
        _log.warning("role sends no heartbeat, restarting it", role=role, last_seen=seen.isoformat())
        if role == CHAMBERLAIN:
            last_seen = seen.isoformat(timespec="seconds").replace("+00:00", "Z")
            missed = HeartbeatMissed(target=role, last_seen=last_seen, threshold_seconds=self._threshold_seconds)
            async with self._bus.transaction() as transaction:
                await transaction.append(to_log_entry(missed, missed.actor, self._clock()))
        # The new process logs `recovery.session_restarted`.
        self._processes.restart(role)

    async def _last_heartbeats(self) -> dict[str, datetime]:
        """Return the time of the last heartbeat of each role.

        Several machines can share a database, so only the heartbeats of the processes of this supervisor count there.
        """
        async with self._bus.transaction() as transaction:
            if self._store is not None:
                return await last_heartbeats(transaction, self._store)
            heartbeats = await list_heartbeats(transaction)
        pids = {child.pid for child in self._processes.children.values()}
        local = [each for each in heartbeats if each.machine == socket.gethostname() and each.pid in pids]
        return {heartbeat.role: heartbeat.at for heartbeat in local}
