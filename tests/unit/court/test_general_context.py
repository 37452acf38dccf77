"""How long a General delays an assignment that cannot start yet."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from kingdom.bus import Envelope
from kingdom.bus.event import Event
from kingdom.court.general.context import GeneralContext

NOW = datetime(2026, 2, 7, 10, tzinfo=UTC)


@pytest.mark.parametrize(("waited", "again"), [(-1, 0.5), (0, 0.5), (2, 2), (9, 9), (3600, 10)])
def test_new_questions_are_checked_often_and_old_ones_less_often(waited: float, again: float) -> None:
    context = GeneralContext(packages=dict, channel="", zone=ZoneInfo("UTC"), clock=lambda: NOW)
    envelope = Envelope(type="AssignmentGiven", occurred_at=NOW - timedelta(seconds=waited))
    deferred = context.defer(Event(None, envelope, attempt=1, fence=1), "no host has room")
    assert (deferred.after.total_seconds(), deferred.reason) == (again, "no host has room")
