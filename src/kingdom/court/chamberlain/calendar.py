"""Days and hours in the court's time zone, including daylight saving."""

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

_DAY = timedelta(days=1)


def day_of(moment: datetime, zone: ZoneInfo) -> date:
    """Return the day of a moment."""
    return moment.astimezone(zone).date()


def latest_due(now: datetime, zone: ZoneInfo, hour: int) -> date:
    """Return the latest day that has reached `hour`. If daylight saving skips that hour, the next hour counts."""
    local = now.astimezone(zone)
    return local.date() if local.hour >= hour else local.date() - _DAY


def days_after(last: date, until: date) -> Iterator[date]:
    """Yield the days after `last`, up to `until`."""
    for number in range(1, (until - last).days + 1):
        yield last + number * _DAY
