"""What can be set about the King: the part `king` of the file of settings."""

from typing import Annotated

import msgspec
from msgspec import Meta

_Positive = Annotated[float, Meta(gt=0)]
_Count = Annotated[int, Meta(ge=1)]


class KingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much runs at once, what a day may cost, and how often the King looks by himself."""

    every_seconds: _Positive = 10
    soldiers: _Count = 3
    soldiers_per_repo: _Count = 1
    daily_usd: _Positive = 300
    warning_percent: Annotated[float, Meta(gt=0, le=100)] = 70
    critical_percent: Annotated[float, Meta(gt=0, le=100)] = 90
    # What is set aside for an assignment whose General has no budget of its own, and what its run may cost.
    reserved_usd: Annotated[float, Meta(ge=0)] = 5
    # An older reading of the health says nothing of the machine now.
    health_stale_seconds: _Positive = 120
    # A time of a schedule that is longer ago was missed, and is left to `catch_up`.
    schedule_late_seconds: _Positive = 120
    # Where people are told of assignments whose General names no channel.
    channel: str = "kingdom"
