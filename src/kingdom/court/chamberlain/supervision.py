"""Detect roles without heartbeats, once per outage. The supervisor restarts them."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from kingdom.bus.port import Bus, Transaction
from kingdom.chronicle.events import HeartbeatMissed
from kingdom.court.chamberlain.records import STATE, load_or_create, log_internal_event, save_if_changed
from kingdom.court.chamberlain.settings import HeartbeatSettings
from kingdom.court.heartbeat import forget_old_heartbeats, last_heartbeats
from kingdom.workflow.records import run_transaction

_OUTAGES = "outages"


class Outages(msgspec.Struct, kw_only=True):
    """The roles that are silent now, with their last heartbeat."""

    roles: dict[str, datetime] = {}

    def update(
        self, heartbeats: Mapping[str, datetime], since: datetime, now: datetime, settings: HeartbeatSettings
    ) -> list[str]:
        """Update the outages, and return the roles that became silent.

        Silence counts only after `since`, when the Chamberlain started to watch the roles.
        """
        threshold = timedelta(seconds=settings.threshold_seconds)
        silent = {role: at for role, at in heartbeats.items() if now - at > threshold}
        ongoing = {role: at for role, at in self.roles.items() if role in silent}
        missed = sorted(silent.keys() - ongoing.keys()) if now - since > threshold else []
        self.roles = ongoing | {role: silent[role] for role in missed}
        return missed


def is_role_known(
    heartbeats: Mapping[str, datetime], role: str, since: datetime, now: datetime, settings: HeartbeatSettings
) -> bool:
    """Return whether heartbeats tell if a role runs. Right after the start, a missing heartbeat means nothing."""
    threshold = timedelta(seconds=settings.threshold_seconds)
    return now - since > threshold or silence_of(heartbeats, role, now, settings) is None


def silence_of(
    heartbeats: Mapping[str, datetime], role: str, now: datetime, settings: HeartbeatSettings
) -> timedelta | None:
    """Return how long a role has been silent: None if it is not, the maximum if it never had a heartbeat."""
    if role not in heartbeats:
        return timedelta.max
    silent = now - heartbeats[role]
    return silent if silent > timedelta(seconds=settings.threshold_seconds) else None


async def check_roles(
    bus: Bus, directory: Path | None, settings: HeartbeatSettings, since: datetime, now: datetime
) -> dict[str, datetime]:
    """Log the roles that became silent, and return the last heartbeat of each role.

    Silence counts only after `since`, because the Chamberlain does not know which roles were silent before. If several
    Chamberlains run, the first that stores an outage logs it.
    """

    async def act(transaction: Transaction) -> dict[str, datetime]:
        heartbeats = await last_heartbeats(transaction, directory)
        await forget_old_heartbeats(transaction, now)
        record, outages = await load_or_create(transaction, STATE, _OUTAGES, Outages)
        for role in outages.update(heartbeats, since, now, settings):
            missed = HeartbeatMissed(
                target=role,
                last_seen=heartbeats[role].isoformat(timespec="seconds").replace("+00:00", "Z"),
                threshold_seconds=settings.threshold_seconds,
            )
            await log_internal_event(transaction, missed, now)
        await save_if_changed(transaction, record, outages)
        return heartbeats

    return await run_transaction(bus, act)
