"""Roles that give no sign of life: noticed once per outage, started again with growing pauses."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.chronicle.events import HeartbeatMissed, SessionRestarted
from kingdom.court.chamberlain.records import CHAMBERLAIN, MEMORY, recall, remember, say
from kingdom.court.chamberlain.settings import HeartbeatSettings
from kingdom.court.heartbeat import forget_old_signs, last_signs
from kingdom.workflow.records import change

_OUTAGES = "outages"
_log = structlog.get_logger("kingdom.court")


class Supervisor(ABC):
    """Whoever runs the processes of roles on this machine."""

    @abstractmethod
    def roles(self) -> Collection[str]:
        """Return the roles that it can start again."""

    @abstractmethod
    async def restart(self, role: str) -> int:
        """End what is left of a role and start it again; returns its process id."""


class Outage(msgspec.Struct, kw_only=True):
    """A role that is silent since it was `last_seen`, and how often it was started again, also in earlier outages."""

    last_seen: datetime | None
    restarts: int = 0
    next_restart_at: datetime | None = None
    is_over: bool = False

    def request(self, now: datetime, settings: HeartbeatSettings) -> bool:
        """Tell whether the role may be started again now; the pause until the next time doubles."""
        if self.next_restart_at is not None and now < self.next_restart_at:
            return False
        pause = settings.restart_after_seconds * 2.0 ** min(self.restarts, 30)
        # A role that was just started needs as long as the threshold to prove that it is silent.
        pause = max(min(pause, settings.restart_after_seconds_max), settings.threshold_seconds)
        self.restarts += 1
        self.next_restart_at = now + timedelta(seconds=pause)
        return True

    def counts(self, now: datetime, settings: HeartbeatSettings) -> bool:
        """Tell whether restarts were lately: who dies again soon is not started as if it were the first time."""
        remembered = timedelta(seconds=settings.restart_after_seconds_max)
        return self.next_restart_at is not None and now < self.next_restart_at + remembered


class Outages(msgspec.Struct, kw_only=True):
    """The roles that are silent now, or were lately."""

    roles: dict[str, Outage] = {}

    def look(
        self, signs: Mapping[str, datetime], since: datetime, now: datetime, settings: HeartbeatSettings
    ) -> list[str]:
        """Take in when each role was last heard of; returns the roles that are missed from now on.

        Silence counts from `since` on, when somebody began to listen.
        """
        threshold = timedelta(seconds=settings.threshold_seconds)
        missed = []
        for role, at in sorted(signs.items()):
            outage = self.roles.get(role)
            if now - at <= threshold:
                if outage:
                    outage.is_over = True
            elif now - since <= threshold:
                continue
            elif outage is None or outage.is_over:
                earlier = outage or Outage(last_seen=at)
                restarts, again_at = earlier.restarts, earlier.next_restart_at
                self.roles[role] = Outage(last_seen=at, restarts=restarts, next_restart_at=again_at)
                missed.append(role)
        goes_on = {role for role in signs if role in self.roles and not self.roles[role].is_over}
        self.roles = {r: each for r, each in self.roles.items() if r in goes_on or each.counts(now, settings)}
        return missed

    def due(self, roles: Collection[str], now: datetime, settings: HeartbeatSettings) -> list[str]:
        """Return which of these roles are to be started again now."""
        silent = [role for role in roles if role in self.roles and not self.roles[role].is_over]
        return [role for role in sorted(silent) if self.roles[role].request(now, settings)]


def is_known(
    signs: Mapping[str, datetime], role: str, since: datetime, now: datetime, settings: HeartbeatSettings
) -> bool:
    """Tell whether a role is known to live or to be silent: who began to listen just now may not have heard it yet."""
    threshold = timedelta(seconds=settings.threshold_seconds)
    return now - since > threshold or silence(signs, role, now, settings) is None


def silence(signs: Mapping[str, datetime], role: str, now: datetime, settings: HeartbeatSettings) -> timedelta | None:
    """Return for how long a role has been silent; None if it is well, the longest time if it was never heard of."""
    if role not in signs:
        return timedelta.max
    silent = now - signs[role]
    return silent if silent > timedelta(seconds=settings.threshold_seconds) else None


async def look_after_roles(
    bus: Bus,
    directory: Path | None,
    supervisor: Supervisor | None,
    settings: HeartbeatSettings,
    since: datetime,
    now: datetime,
) -> dict[str, datetime]:
    """Say which roles are missed, and have those started again that can be; returns when each was last heard of.

    Silence counts from `since` on: after a pause of his own the Chamberlain cannot know who was silent meanwhile.
    Whoever stores the outage first acts on it, so that several Chamberlains do so once. One does not look after itself.
    """
    mine = frozenset(supervisor.roles()) - {CHAMBERLAIN} if supervisor else frozenset()

    async def act(transaction: Transaction) -> tuple[dict[str, datetime], list[str]]:
        signs = await last_signs(transaction, directory)
        await forget_old_signs(transaction, now)
        record, outages = await recall(transaction, MEMORY, _OUTAGES, Outages)
        for role in outages.look(signs, since, now, settings):
            missed = HeartbeatMissed(
                target=role,
                last_seen=signs[role].isoformat(timespec="seconds").replace("+00:00", "Z"),
                threshold_seconds=settings.threshold_seconds,
            )
            await say(transaction, missed, now)
        due = outages.due(mine & signs.keys(), now, settings)
        await remember(transaction, record, outages)
        return signs, due

    signs, due = await change(bus, act)
    if supervisor:
        for role in due:
            await _revive(bus, supervisor, role, now)
    return signs


async def revive(
    bus: Bus, supervisor: Supervisor | None, role: str, settings: HeartbeatSettings, now: datetime
) -> None:
    """Have a role started again that somebody misses, also one that never gave a sign of life."""
    if supervisor is None or role not in supervisor.roles():
        return

    async def act(transaction: Transaction) -> bool:
        record, outages = await recall(transaction, MEMORY, _OUTAGES, Outages)
        may = outages.roles.setdefault(role, Outage(last_seen=None)).request(now, settings)
        await remember(transaction, record, outages)
        return may

    if await change(bus, act):
        await _revive(bus, supervisor, role, now)


async def _revive(bus: Bus, supervisor: Supervisor, role: str, now: datetime) -> None:
    try:
        pid = await supervisor.restart(role)
    except Exception as error:  # noqa: BLE001 - another role may need to be started too
        _log.warning("role could not be started again, trying later", role=role, error=str(error))
        return
    async with bus.transaction() as transaction:
        await say(transaction, SessionRestarted(target=role, pid=pid), now)
