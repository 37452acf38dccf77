"""What the King decides by: his settings, the Generals of now, the time zone of the court and its clock."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from zoneinfo import ZoneInfo

from kingdom.clock import utc_now
from kingdom.court.king.settings import KingSettings
from kingdom.court.package import Package

KING = "king"


@dataclass(frozen=True, slots=True, kw_only=True)
class KingContext:
    """What every decision depends on besides the store; `packages` is asked each time, since Generals come and go."""

    packages: Callable[[], Sequence[Package]]
    zone: ZoneInfo
    settings: KingSettings = field(default_factory=KingSettings)
    clock: Callable[[], datetime] = utc_now

    def package(self, general: str) -> Package | None:
        """Return the package of a General, if there is one now."""
        return next((package for package in self.packages() if package.name == general), None)

    def day(self, moment: datetime) -> date:
        """Return the day of a moment in the court's time zone."""
        return moment.astimezone(self.zone).date()

    def channel(self, general: str) -> str:
        """Return where people are told of what a General does."""
        package = self.package(general)
        return (package.general.channel if package else "") or self.settings.channel
