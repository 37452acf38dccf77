"""Detect roles without heartbeats, once per outage. The supervisor restarts them."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from kingdom.bus.port import Bus, Transaction
from kingdom.chronicle.events import HeartbeatMissed
from kingdom.court.chamberlain.records import MEMORY, log_internal_event, recall, remember
from kingdom.court.chamberlain.settings import HeartbeatSettings
from kingdom.court.heartbeat import forget_old_heartbeats, last_heartbeats
from kingdom.workflow.records import run_transaction

_OUTAGES = "outages"


class Outages(msgspec.Struct, kw_only=True):
    """The roles that are silent now, with their last heartbeat."""

    roles: dict[str, datetime] = {}

    def look(
        self, signs: Mapping[str, datetime], since: datetime, now: datetime, settings: HeartbeatSettings
    ) -> list[str]:
        """Update the outages, and return the roles that became silent.

        Silence counts only after `since`, when the Chamberlain started to watch.
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
    """Return whether the state of a role is known. Right after the start, a missing heartbeat means nothing."""
    threshold = timedelta(seconds=settings.threshold_seconds)
    return now - since > threshold or silence_of(signs, role, now, settings) is None


def silence_of(
    signs: Mapping[str, datetime], role: str, now: datetime, settings: HeartbeatSettings
) -> timedelta | None:
    """Return how long a role has been silent: None if it is not, the maximum if it never had a heartbeat."""
    if role not in signs:
        return timedelta.max
    silent = now - signs[role]
    return silent if silent > timedelta(seconds=settings.threshold_seconds) else None


async def check_roles(
    bus: Bus, directory: Path | None, settings: HeartbeatSettings, since: datetime, now: datetime
) -> dict[str, datetime]:
    """Log the roles that became silent, and return the last heartbeat of each role.

    Silence counts only after `since`: after a pause of its own, the Chamberlain cannot know who was silent. The first
    Chamberlain to store an outage logs it, so that it is logged once.
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

    return await run_transaction(bus, act)
