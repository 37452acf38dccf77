"""What may be begun now: the gates of health and money, of which the strictest counts. Pure."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kingdom.court.documents import Priority
from kingdom.court.king.settings import KingSettings
from kingdom.court.quota import Quota

# So much earlier something counts as come: priority with ageing is one order, and nothing waits for ever.
HEAD_START: Mapping[Priority, timedelta] = {
    Priority.HIGH: timedelta(hours=4),
    Priority.NORMAL: timedelta(hours=1),
    Priority.LOW: timedelta(),
}
_EPOCH_DIGITS = 14


class AdmissionLevel(IntEnum):
    """Whom a rule level pass: all of a priority and above, and what has waited long enough to count as such."""

    EVERYTHING = 0
    NORMAL = 1
    HIGH = 2
    NOTHING = 3


class _HealthReading(msgspec.Struct, frozen=True, kw_only=True):
    """What the Chamberlain says of the machine; a time without a zone is UTC for nobody."""

    level: str
    at: Annotated[datetime, Meta(tz=True)]
    reason: str = ""


class AdmissionRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule as it stands now, with the reason."""

    name: str
    level: AdmissionLevel
    reason: str

    def admits(self, rank: int, now: datetime) -> bool:
        """Tell whether something of a rank may pass."""
        match self.level:
            case AdmissionLevel.EVERYTHING:
                return True
            case AdmissionLevel.NOTHING:
                return False
        least = Priority.HIGH if self.level is AdmissionLevel.HIGH else Priority.NORMAL
        return rank <= rank_of(now, least)


def rank_of(since: datetime, priority: Priority) -> int:
    """Return the entry of something that waits since a moment, in milliseconds: the lower comes first."""
    return max(0, int((since - HEAD_START[priority]).timestamp() * 1000))


def rank_text(rank: int) -> str:
    """Return a rank so that texts sort as ranks do."""
    return f"{rank:0{_EPOCH_DIGITS}d}"


def strictest_rule(*rules: AdmissionRule) -> AdmissionRule:
    """Return the rule that counts; of two alike the first."""
    return max(rules, key=lambda rule: rule.level)


def health_rule(reading: Mapping[str, Any] | None, now: datetime, settings: KingSettings) -> AdmissionRule:
    """Return what the health of the machine level begin; without anybody who ever measured, everything."""
    if reading is None:
        return AdmissionRule(
            name="health", level=AdmissionLevel.EVERYTHING, reason="nobody measures the health of the machine"
        )
    try:
        seen = msgspec.convert(reading, _HealthReading)
    except msgspec.ValidationError as error:
        return AdmissionRule(
            name="health", level=AdmissionLevel.NOTHING, reason=f"the reading of the health cannot be read: {error}"
        )
    age = (now - seen.at).total_seconds()
    if age > settings.health_stale_seconds:
        return AdmissionRule(
            name="health",
            level=AdmissionLevel.NOTHING,
            reason=f"the last reading of the health is {age:.0f} s old, which counts as orange",
        )
    level = {"green": AdmissionLevel.EVERYTHING, "yellow": AdmissionLevel.HIGH}.get(seen.level, AdmissionLevel.NOTHING)
    return AdmissionRule(
        name="health", level=level, reason=f"the health is {seen.level}{f': {seen.reason}' if seen.reason else ''}"
    )


def budget_rule(money: Quota, settings: KingSettings) -> AdmissionRule:
    """Return what the money that is left today level begin."""
    share = money.spent / money.limit * 100
    if share >= 100:  # noqa: PLR2004 - percent
        level = AdmissionLevel.NOTHING
    elif share >= Decimal(str(settings.critical_percent)):
        level = AdmissionLevel.HIGH
    elif share >= Decimal(str(settings.warning_percent)):
        level = AdmissionLevel.NORMAL
    else:
        level = AdmissionLevel.EVERYTHING
    return AdmissionRule(name="budget", level=level, reason=f"${money.spent:.2f} of ${money.limit:.2f} are spent today")
