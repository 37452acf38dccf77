"""What the King needs for a decision besides the store: settings, Generals, time zone and clock."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from zoneinfo import ZoneInfo

from kingdom.clock import utc_now
from kingdom.court.king.settings import KingSettings
from kingdom.court.package import FollowPolicy, Package

KING = "king"


@dataclass(frozen=True, slots=True, kw_only=True)
class KingContext:
    """The settings, time zone, clock and Generals. `packages` returns the packages that the Generals have now."""

    packages: Callable[[], Sequence[Package]]
    zone: ZoneInfo
    settings: KingSettings = field(default_factory=KingSettings)
    clock: Callable[[], datetime] = utc_now

    def package(self, general: str) -> Package | None:
        """Return the package of a General, or None."""
        return next((package for package in self.packages() if package.name == general), None)

    def follow_policy(self, general: str) -> FollowPolicy | None:
        """Return how a General follows its pull requests now, or None if it does not."""
        package = self.package(general)
        return package.general.follow if package else None

    def day(self, moment: datetime) -> date:
        """Return the day of a moment in the court's time zone."""
        return moment.astimezone(self.zone).date()

    def channel(self, general: str) -> str:
        """Return the channel for messages about a General."""
        package = self.package(general)
        return (package.general.channel if package else "") or self.settings.channel
