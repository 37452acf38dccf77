"""Roles whose process runs and gives no sign of life: whoever runs it ends it, and starts it again."""

import asyncio
import socket
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from kingdom.bus.port import Bus
from kingdom.chronicle.catalogue import entry
from kingdom.chronicle.events import HeartbeatMissed, InternalEvent, SessionRestarted
from kingdom.clock import utc_now
from kingdom.court.chamberlain.records import CHAMBERLAIN
from kingdom.court.chamberlain.settings import ChamberlainSettings
from kingdom.court.heartbeat import last_heartbeats, list_heartbeats
from kingdom.errors import KingdomError
from kingdom.supervisor.processes import RoleProcesses, State

_LOOK_SECONDS = 2.0
# After a longer gap between two looks, signs may have been missed: the machine slept, or the store was away.
_GAP = timedelta(seconds=30)
_log = structlog.get_logger("kingdom.supervisor")


class Silence:
    """Looks for silent roles among the processes of this machine.

    The Chamberlain says that a role is missed; two of his rounds later it is ended here, and started again. Nobody says
    that of himself, so what is said of a silent Chamberlain is said here too.
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
        self._looked_at = self._counts_from = clock()

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                await self.look()
            except (KingdomError, OSError) as error:
                _log.warning("the signs of life cannot be read, trying again", error=str(error))
            await asyncio.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Start those again that are silent for too long."""
        signs = await self._signs()
        if self._processes.stopping:
            # Who ends takes back its sign before its process is gone.
            return
        now = self._clock()
        if now - self._looked_at > _GAP:
            self._counts_from = now
        self._looked_at = now
        for role, child in self._processes.children.items():
            if child.state is not State.RUNNING or child.started_at is None:
                continue
            seen = max(signs.get(role, child.started_at), child.started_at)
            if now - max(seen, self._counts_from) > self._patience:
                await self._revive(role, seen)

    async def _revive(self, role: str, seen: datetime) -> None:
        _log.warning("role gives no sign of life, starting it again", role=role, last_seen=seen.isoformat())
        if role == CHAMBERLAIN:
            last_seen = seen.isoformat(timespec="seconds").replace("+00:00", "Z")
            await self._say(
                HeartbeatMissed(target=role, last_seen=last_seen, threshold_seconds=self._threshold_seconds)
            )
        pid = await self._processes.restart(role)
        await self._say(SessionRestarted(target=role, pid=pid))

    async def _say(self, event: InternalEvent) -> None:
        async with self._bus.transaction() as transaction:
            await transaction.append(entry(event, event.said_by, self._clock()))

    async def _signs(self) -> dict[str, datetime]:
        """Return the last sign of each role: of its process here, or with files, where processes share one, of any."""
        async with self._bus.transaction() as transaction:
            if self._store is not None:
                return await last_heartbeats(transaction, self._store)
            signs = await list_heartbeats(transaction)
        pids = {child.pid for child in self._processes.children.values()}
        mine = [sign for sign in signs if sign.machine == socket.gethostname() and sign.pid in pids]
        return {sign.role: sign.at for sign in mine}
