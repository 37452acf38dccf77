"""Roles that give no sign of life, noticed once per outage; whoever runs them starts them again."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from kingdom.bus.port import Bus, Transaction
from kingdom.chronicle.events import HeartbeatMissed
from kingdom.court.chamberlain.records import MEMORY, log_internal_event, recall, remember
from kingdom.court.chamberlain.settings import HeartbeatSettings
from kingdom.court.heartbeat import forget_old_heartbeats, last_heartbeats
from kingdom.workflow.records import change

_OUTAGES = "outages"


class Outages(msgspec.Struct, kw_only=True):
    """The roles that are silent now, and when each was last heard of."""

    roles: dict[str, datetime] = {}

    def look(
        self, signs: Mapping[str, datetime], since: datetime, now: datetime, settings: HeartbeatSettings
    ) -> list[str]:
        """Take in when each role was last heard of; returns the roles that are missed from now on.

        Silence counts from `since` on, when somebody began to listen.
        """
        threshold = timedelta(seconds=settings.threshold_seconds)
        silent = {role: at for role, at in signs.items() if now - at > threshold}
        goes_on = {role: at for role, at in self.roles.items() if role in silent}
        missed = sorted(silent.keys() - goes_on.keys()) if now - since > threshold else []
        self.roles = goes_on | {role: silent[role] for role in missed}
        return missed


def is_known(
    signs: Mapping[str, datetime], role: str, since: datetime, now: datetime, settings: HeartbeatSettings
) -> bool:
    """Tell whether a role is known to live or to be silent: who began to listen just now may not have heard it yet."""
    threshold = timedelta(seconds=settings.threshold_seconds)
    return now - since > threshold or silence_of(signs, role, now, settings) is None


def silence_of(
    signs: Mapping[str, datetime], role: str, now: datetime, settings: HeartbeatSettings
) -> timedelta | None:
    """Return for how long a role has been silent; None if it is well, the longest time if it was never heard of."""
    if role not in signs:
        return timedelta.max
    silent = now - signs[role]
    return silent if silent > timedelta(seconds=settings.threshold_seconds) else None


async def check_roles(
    bus: Bus, directory: Path | None, settings: HeartbeatSettings, since: datetime, now: datetime
) -> dict[str, datetime]:
    """Say which roles are missed; returns when each was last heard of.

    Silence counts from `since` on: after a pause of his own the Chamberlain cannot know who was silent meanwhile.
    Whoever stores the outage first says so, so that several Chamberlains do it once.
    """

    async def act(transaction: Transaction) -> dict[str, datetime]:
        signs = await last_heartbeats(transaction, directory)
        await forget_old_heartbeats(transaction, now)
        record, outages = await recall(transaction, MEMORY, _OUTAGES, Outages)
        for role in outages.look(signs, since, now, settings):
            missed = HeartbeatMissed(
                target=role,
                last_seen=signs[role].isoformat(timespec="seconds").replace("+00:00", "Z"),
                threshold_seconds=settings.threshold_seconds,
            )
            await log_internal_event(transaction, missed, now)
        await remember(transaction, record, outages)
        return signs

    return await change(bus, act)
