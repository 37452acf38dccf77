"""The health of the machines as people see it, and what it holds back."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from kingdom.bus.port import Transaction
from kingdom.court.chamberlain.health import CPU, DISK, MEMORY, HealthLevel, threshold_settings
from kingdom.court.chamberlain.records import HEALTH
from kingdom.court.king.admission_rules import AdmissionLevel, AdmissionRule, SlotLimit, health_rule, slot_limit
from kingdom.court.king.context import KingContext
from kingdom.court.records import CURRENT

_UNKNOWN = "unknown"
# What an admission level means for new work.
_HELD_BACK = {
    AdmissionLevel.HIGH: "only work that is urgent or has waited for hours starts",
    AdmissionLevel.NOTHING: "nothing new starts",
}


class HealthSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The current health level, its reason, and the age of the reading.

    `stops_work` says whether no new work starts, and `effect` describes what the health holds back, or is "".
    """

    level: str
    reason: str
    age_seconds: float | None = None
    stops_work: bool = False
    effect: str = ""


async def summarize_health(transaction: Transaction, now: datetime, king: KingContext) -> HealthSummary:
    """Return the health as people see it."""
    record = await transaction.get(HEALTH.name, CURRENT)
    if record is None:
        return HealthSummary(level=_UNKNOWN, reason="the Chamberlain has not measured it yet")
    rule = health_rule(record.doc, now, king.settings)
    try:
        at = msgspec.convert(record.doc.get("at"), datetime)
        age = (now - at).total_seconds()
    except (msgspec.ValidationError, TypeError):
        age = None
    if age is None or age > king.settings.health_stale_seconds:
        effect = _HELD_BACK[AdmissionLevel.NOTHING]
        return HealthSummary(
            level=HealthLevel.ORANGE, reason=rule.reason, age_seconds=age, stops_work=True, effect=effect
        )
    return HealthSummary(
        level=str(record.doc["level"]),
        reason=str(record.doc.get("reason", "")),
        age_seconds=age,
        stops_work=rule.level is AdmissionLevel.NOTHING,
        effect=_effect(record.doc, rule, slot_limit(record.doc, king.settings)),
    )


def _effect(reading: Mapping[str, Any], rule: AdmissionRule, limit: SlotLimit) -> str:
    """Return what a health reading holds back and which settings decide it, or ""."""
    level, reason = str(reading["level"]), str(reading.get("reason", ""))
    effects = []
    if rule.level in _HELD_BACK:
        stop_level, stop_reason = str(reading.get("stop_level") or level), str(reading.get("stop_reason") or reason)
        because = "" if stop_reason == reason else f" because of {stop_reason}"
        effects.append(f"{_HELD_BACK[rule.level]}{because}{_setting_hint(stop_level, stop_reason)}")
    if limit.reason:
        effects.append(f"{limit.limit_text}{_setting_hint(level, reason) if reason.startswith(CPU) else ''}")
    return ", and ".join(effects)


def _setting_hint(level: str, reason: str) -> str:
    """Return the end of a sentence that names the setting of the threshold, or "" if no threshold is the reason."""
    resource = reason.partition(":")[0]
    setting = f"chamberlain.health.{'disk_' if resource == DISK else ''}{threshold_settings(level)}"
    return f" (see {setting} in kingdom.yaml)" if resource in (CPU, MEMORY, DISK) else ""
