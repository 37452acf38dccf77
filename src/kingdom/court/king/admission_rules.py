"""Admission rules: how much new work the health of the machine and the budget allow. The strictest rule counts.

Memory, disk and money may stop new work. Processor pressure only lowers how many assignments run at once.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from math import ceil
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kingdom.court.documents import Priority
from kingdom.court.king.settings import KingSettings
from kingdom.court.quota import Quota
from kingdom.text import format_age

# The time that is added to the waiting time of an entry, by its priority. An old entry of low priority thus overtakes
# newer entries of high priority, and no entry waits forever.
HEAD_START: Mapping[Priority, timedelta] = {
    Priority.HIGH: timedelta(hours=4),
    Priority.NORMAL: timedelta(hours=1),
    Priority.LOW: timedelta(),
}
# Enough digits for milliseconds since 1970 until the year 5138.
_RANK_DIGITS = 14
_PROCESSOR = "cpu_percent"
# The explanation of a health reading, by the resource that decides its level.
_RESOURCE_TEXTS = {
    _PROCESSOR: "the machine is busy (CPU pressure {} %)",
    "memory_percent": "the machine is short of memory ({} % used)",
    "disk_percent": "the disk is almost full ({} % used)",
}


class AdmissionLevel(IntEnum):
    """The lowest priority that a rule admits. An entry that has waited long counts as one of a higher priority."""

    EVERYTHING = 0
    NORMAL = 1
    HIGH = 2
    NOTHING = 3


class _HealthReading(msgspec.Struct, frozen=True, kw_only=True):
    """The health reading of the Chamberlain. A reading without a time zone is invalid.

    Chamberlains of earlier versions write no `stop_level`.
    """

    level: str
    at: Annotated[datetime, Meta(tz=True)]
    reason: str = ""
    stop_level: str | None = None
    stop_reason: str = ""
    slot_share: Annotated[float, Meta(ge=0, le=1)] = 1
    slot_reason: str = ""


class AdmissionRule(msgspec.Struct, frozen=True, kw_only=True):
    """One admission rule at this moment, with its reason."""

    name: str
    level: AdmissionLevel
    reason: str

    def admits(self, rank: int, now: datetime) -> bool:
        """Return whether an entry of this rank is admitted."""
        match self.level:
            case AdmissionLevel.EVERYTHING:
                return True
            case AdmissionLevel.NOTHING:
                return False
        lowest = Priority.HIGH if self.level is AdmissionLevel.HIGH else Priority.NORMAL
        return rank <= rank_of(now, lowest)


class SlotLimit(msgspec.Struct, frozen=True, kw_only=True):
    """How many assignments may run at once. `reason` says why this is fewer than configured, or is empty."""

    slots: int
    reason: str = ""

    def allows(self, soldiers: Quota) -> bool:
        """Return whether one more assignment may start."""
        return soldiers.held < self.slots

    @property
    def limit_text(self) -> str:
        """Return the limit as a text for people."""
        return "one run at a time" if self.slots == 1 else f"at most {self.slots} runs at once"

    @property
    def text(self) -> str:
        """Return the reason and the limit as a text for people."""
        return f"{self.reason}, so {self.limit_text}"


def rank_of(since: datetime, priority: Priority) -> int:
    """Return the rank of an entry in milliseconds. The lowest rank comes first."""
    return max(0, int((since - HEAD_START[priority]).timestamp() * 1000))


def rank_text(rank: int) -> str:
    """Return a rank as text that sorts like the number."""
    return f"{rank:0{_RANK_DIGITS}d}"


def strictest_rule(*rules: AdmissionRule) -> AdmissionRule:
    """Return the strictest rule, the first one on a tie."""
    return max(rules, key=lambda rule: rule.level)


def health_rule(reading: Mapping[str, Any] | None, now: datetime, settings: KingSettings) -> AdmissionRule:
    """Return the rule for the machine's health. It admits everything if there is no reading."""
    if reading is None:
        return AdmissionRule(
            name="health", level=AdmissionLevel.EVERYTHING, reason="the health has never been measured"
        )
    try:
        seen = msgspec.convert(reading, _HealthReading)
    except msgspec.ValidationError as error:
        return AdmissionRule(
            name="health", level=AdmissionLevel.NOTHING, reason=f"the health reading is invalid: {error}"
        )
    age = (now - seen.at).total_seconds()
    if age > settings.health_stale_seconds:
        return AdmissionRule(
            name="health",
            level=AdmissionLevel.NOTHING,
            reason=f"the last health reading is {format_age(age)} old, which counts as health level orange",
        )
    health, reason = _stop_level(seen)
    level = {"green": AdmissionLevel.EVERYTHING, "yellow": AdmissionLevel.HIGH}.get(health, AdmissionLevel.NOTHING)
    return AdmissionRule(name="health", level=level, reason=_describe_health(health, reason))


def slot_limit(reading: Mapping[str, Any] | None, settings: KingSettings) -> SlotLimit:
    """Return how many assignments may run at once. Processor pressure lowers the number, but never below one."""
    try:
        seen = msgspec.convert(reading, _HealthReading) if reading is not None else None
    except msgspec.ValidationError:
        seen = None
    slots = max(1, ceil(settings.soldiers * seen.slot_share)) if seen else settings.soldiers
    if seen is None or slots >= settings.soldiers:
        return SlotLimit(slots=settings.soldiers)
    return SlotLimit(slots=slots, reason=_describe_health(seen.level, seen.slot_reason))


def _stop_level(reading: _HealthReading) -> tuple[str, str]:
    """Return the health level of memory and disk, which may stop new work, and the reason for it."""
    if reading.stop_level is not None:
        return reading.stop_level, reading.stop_reason
    return ("green", "") if reading.reason.startswith(_PROCESSOR) else (reading.level, reading.reason)


def _describe_health(level: str, reason: str) -> str:
    resource, _, percent = reason.partition(": ")
    if resource in _RESOURCE_TEXTS:
        return _RESOURCE_TEXTS[resource].format(percent)
    return f"health is {level}" + (f" ({reason})" if reason else "")


def budget_rule(money: Quota, settings: KingSettings) -> AdmissionRule:
    """Return the rule for the money that is left today."""
    share = money.spent / money.limit * 100
    if share >= 100:  # noqa: PLR2004 - percent
        level = AdmissionLevel.NOTHING
    elif share >= Decimal(str(settings.critical_percent)):
        level = AdmissionLevel.HIGH
    elif share >= Decimal(str(settings.warning_percent)):
        level = AdmissionLevel.NORMAL
    else:
        level = AdmissionLevel.EVERYTHING
    return AdmissionRule(
        name="budget", level=level, reason=f"${money.spent:.2f} of the daily ${money.limit:.2f} is spent"
    )
