"""Days and hours in the time zone of the court, also on days on which its clocks are changed."""

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

_DAY = timedelta(days=1)


def day_of(moment: datetime, zone: ZoneInfo) -> date:
    """Return the day that a moment belongs to."""
    return moment.astimezone(zone).date()


def latest_due(now: datetime, zone: ZoneInfo, hour: int) -> date:
    """Return the last day whose `hour` has come; an hour that the clocks skip comes with the one after it."""
    local = now.astimezone(zone)
    return local.date() if local.hour >= hour else local.date() - _DAY


def days_after(last: date, until: date) -> Iterator[date]:
    """Yield the days after one, up to another."""
    for number in range(1, (until - last).days + 1):
        yield last + number * _DAY
