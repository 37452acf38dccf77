"""Restart roles whose process runs but sends no heartbeat."""

import asyncio
import socket
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from kingdom.bus.port import Bus
from kingdom.chronicle.catalog import to_log_entry
from kingdom.chronicle.events import HeartbeatMissed, InternalEvent, SessionRestarted
from kingdom.clock import utc_now
from kingdom.court.chamberlain.records import CHAMBERLAIN
from kingdom.court.chamberlain.settings import ChamberlainSettings
from kingdom.court.heartbeat import last_heartbeats, list_heartbeats
from kingdom.errors import KingdomError
from kingdom.supervisor.processes import ProcessState, RoleProcesses

_CHECK_SECONDS = 2.0
# After a longer gap between two checks heartbeats may have been missed: the machine was suspended or the store away.
_GAP = timedelta(seconds=30)
_log = structlog.get_logger("kingdom.supervisor")


class SilentRoleRestarter:
    """Restarts silent roles of this machine.

    The Chamberlain first logs a missed heartbeat, and two of its rounds later the role is restarted here. The
    Chamberlain cannot log its own missed heartbeat, so that is logged here.
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
        self._patience = timedelta(seconds=self._threshold_seconds + 2 * settings.every_seconds)
        self._store = store
        self._clock = clock
        self._checked_at = self._counts_from = clock()

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
            # A role that stops removes its heartbeat before its process ends.
            return
        now = self._clock()
        if now - self._checked_at > _GAP:
            self._counts_from = now
        self._checked_at = now
        for role, child in self._processes.children.items():
            if child.state is not ProcessState.RUNNING or child.started_at is None:
                continue
            seen = max(heartbeats.get(role, child.started_at), child.started_at)
            if now - max(seen, self._counts_from) > self._patience:
                await self._restart(role, seen)

    async def _restart(self, role: str, seen: datetime) -> None:
        _log.warning("role sends no heartbeat, restarting it", role=role, last_seen=seen.isoformat())
        if role == CHAMBERLAIN:
            last_seen = seen.isoformat(timespec="seconds").replace("+00:00", "Z")
            await self._log_event(
                HeartbeatMissed(target=role, last_seen=last_seen, threshold_seconds=self._threshold_seconds)
            )
        pid = await self._processes.restart(role)
        await self._log_event(SessionRestarted(target=role, pid=pid))

    async def _log_event(self, event: InternalEvent) -> None:
        async with self._bus.transaction() as transaction:
            await transaction.append(to_log_entry(event, event.actor, self._clock()))

    async def _last_heartbeats(self) -> dict[str, datetime]:
        """Return the last heartbeat of each role: of its process here, or of any process with a file store."""
        async with self._bus.transaction() as transaction:
            if self._store is not None:
                return await last_heartbeats(transaction, self._store)
            signs = await list_heartbeats(transaction)
        pids = {child.pid for child in self._processes.children.values()}
        local = [sign for sign in signs if sign.machine == socket.gethostname() and sign.pid in pids]
        return {sign.role: sign.at for sign in local}
