"""The section `king` of the settings."""

from typing import Annotated

import msgspec
from msgspec import Meta

_Positive = Annotated[float, Meta(gt=0)]
_Count = Annotated[int, Meta(ge=1)]


class KingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much work runs at once, what a day may cost, and how often the King's timers run."""

    every_seconds: _Positive = 10
    soldiers: _Count = 3
    soldiers_per_repo: _Count = 1
    daily_usd: _Positive = 300
    warning_percent: Annotated[float, Meta(gt=0, le=100)] = 70
    critical_percent: Annotated[float, Meta(gt=0, le=100)] = 90
    # If a General has no budget, this amount is reserved for its assignment and limits the cost of its run.
    reserved_usd: Annotated[float, Meta(ge=0)] = 5
    # A health reading that is older than this counts as orange.
    health_stale_seconds: _Positive = 120
    # A schedule's time counts as missed after this delay. Then `catch_up` decides whether it still fires.
    schedule_late_seconds: _Positive = 120
    # The channel for assignments whose General has no channel.
    channel: str = "kingdom"
