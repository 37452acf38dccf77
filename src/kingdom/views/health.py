"""The JSON of the health of machines."""

from datetime import datetime

import msgspec

from kingdom.court.chamberlain.health import HealthLevel


class ResourceUse(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a resource a machine uses in percent, its level, and the thresholds of the levels."""

    name: str
    percent: float
    level: HealthLevel
    thresholds: dict[HealthLevel, float]


class MachineUse(msgspec.Struct, frozen=True, kw_only=True):
    """The last measured use of a machine."""

    name: str
    at: datetime
    resources: list[ResourceUse]
