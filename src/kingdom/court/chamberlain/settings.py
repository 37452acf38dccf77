"""What can be set about the Chamberlain: the part `chamberlain` of the file of settings."""

from typing import Annotated

import msgspec
from msgspec import Meta

_Days = Annotated[float, Meta(gt=0)]
_Percent = Annotated[float, Meta(gt=0, le=100)]
# One above 100 is never reached.
_Threshold = Annotated[float, Meta(gt=0)]
_Count = Annotated[int, Meta(ge=1)]
_Positive = Annotated[float, Meta(gt=0)]
_Hour = Annotated[int, Meta(ge=0, le=23)]


class _ChamberlainSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the settings; a field that nobody knows is an error."""


class RetentionSettings(_ChamberlainSection, frozen=True, kw_only=True):
    """How long what has ended is kept, and how large a log for people may become."""

    log_max_mb: _Positive = 100
    logs_days: _Days = 7
    results_days: _Days = 7
    queue_days: _Days = 7
    prompts_days: _Days = 3
    session_logs_days: _Days = 7
    seen_days: _Days = 30

    @property
    def log_max_bytes(self) -> int:
        """Return the size beyond which a log for people is put aside."""
        return int(self.log_max_mb * (1 << 20))


class HealthSettings(_ChamberlainSection, frozen=True, kw_only=True):
    """From which percentage on a machine is on which level; it comes down `margin` below."""

    yellow: _Threshold = 60
    orange: _Threshold = 80
    red: _Threshold = 90
    disk_yellow: _Threshold = 85
    disk_orange: _Threshold = 95
    margin: Annotated[float, Meta(ge=0)] = 5
    # After so long without a new reading a machine is not counted any more.
    stale_seconds: _Positive = 120


class BudgetSettings(_ChamberlainSection, frozen=True, kw_only=True):
    """From which share of the day's money on less is begun; how much it is the King knows."""

    warning_percent: _Percent = 70
    critical_percent: _Percent = 90


class AnomalySettings(_ChamberlainSection, frozen=True, kw_only=True):
    """When something in the log is unusual enough to tell people."""

    failures_in_a_row: _Count = 3
    timeouts: _Count = 5
    timeouts_window_minutes: _Positive = 60
    undispatched_minutes: _Positive = 30
    # For so long people are not told the same again.
    cool_down_minutes: _Positive = 60
    # So long an entry is waited with, since an earlier one may be written later.
    settle_seconds: Annotated[float, Meta(ge=0)] = 10


class HeartbeatSettings(_ChamberlainSection, frozen=True, kw_only=True):
    """After how long a silent role counts as dead."""

    threshold_seconds: _Count = 120


class ChamberlainSettings(_ChamberlainSection, frozen=True, kw_only=True):
    """Everything that can be set about the Chamberlain; hours are in the time zone of the court."""

    every_seconds: _Positive = 30
    channel: str = "kingdom"
    clean_up_hour: _Hour = 3
    report_hour: _Hour = 9
    # So many days that nobody was there for are still reported.
    report_days_back: _Count = 7
    retention: RetentionSettings = RetentionSettings()
    health: HealthSettings = HealthSettings()
    budget: BudgetSettings = BudgetSettings()
    anomalies: AnomalySettings = AnomalySettings()
    heartbeat: HeartbeatSettings = HeartbeatSettings()
