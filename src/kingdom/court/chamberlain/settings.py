"""The section `chamberlain` of the settings."""

from typing import Annotated

import msgspec
from msgspec import Meta

_Days = Annotated[float, Meta(gt=0)]
_Percent = Annotated[float, Meta(gt=0, le=100)]
# In percent. A threshold above 100 is allowed, and is never reached.
_Threshold = Annotated[float, Meta(gt=0)]
_Count = Annotated[int, Meta(ge=1)]
_Positive = Annotated[float, Meta(gt=0)]
_Hour = Annotated[int, Meta(ge=0, le=23)]


class _ChamberlainSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the settings; an unknown field is an error."""


class RetentionSettings(_ChamberlainSection, frozen=True, kw_only=True):
    """How long ended data is kept, and how large a text log may become."""

    log_max_mb: _Positive = 100
    logs_days: _Days = 7
    results_days: _Days = 7
    queue_days: _Days = 7
    prompts_days: _Days = 3
    session_logs_days: _Days = 7
    seen_days: _Days = 30

    @property
    def log_max_bytes(self) -> int:
        """Return the size at which a text log is rotated."""
        return int(self.log_max_mb * (1 << 20))


class HealthSettings(_ChamberlainSection, frozen=True, kw_only=True):
    """The thresholds of each level in percent. A level falls when the use is `margin` below its threshold."""

    yellow: _Threshold = 60
    orange: _Threshold = 80
    red: _Threshold = 90
    disk_yellow: _Threshold = 85
    disk_orange: _Threshold = 95
    margin: Annotated[float, Meta(ge=0)] = 5
    # A machine without a reading for this long does not count.
    stale_seconds: _Positive = 120


class BudgetSettings(_ChamberlainSection, frozen=True, kw_only=True):
    """The shares of `king.daily_usd` at which the status of the budget changes. By default, the King uses the same."""

    warning_percent: _Percent = 70
    critical_percent: _Percent = 90


class AnomalySettings(_ChamberlainSection, frozen=True, kw_only=True):
    """When a pattern in the log is unusual enough to alert people."""

    failures_in_a_row: _Count = 3
    timeouts: _Count = 5
    timeouts_window_minutes: _Positive = 60
    undispatched_minutes: _Positive = 30
    # How long the same alert is not repeated.
    cool_down_minutes: _Positive = 60
    # How long an entry is held, in case an entry with an earlier time is written later.
    settle_seconds: Annotated[float, Meta(ge=0)] = 10


class HeartbeatSettings(_ChamberlainSection, frozen=True, kw_only=True):
    """After how long without a heartbeat a role counts as dead."""

    threshold_seconds: _Count = 120


class ChamberlainSettings(_ChamberlainSection, frozen=True, kw_only=True):
    """The settings of the Chamberlain. Hours are in the court's time zone."""

    every_seconds: _Positive = 30
    channel: str = "kingdom"
    clean_up_hour: _Hour = 3
    report_hour: _Hour = 9
    # Reports of at most this many missed days are still sent.
    report_days_back: _Count = 7
    retention: RetentionSettings = RetentionSettings()
    health: HealthSettings = HealthSettings()
    budget: BudgetSettings = BudgetSettings()
    anomalies: AnomalySettings = AnomalySettings()
    heartbeat: HeartbeatSettings = HeartbeatSettings()
