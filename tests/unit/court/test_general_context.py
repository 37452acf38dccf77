"""How long a General delays an assignment that cannot start yet, and which runs are recent."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from kingdom.bus import Envelope
from kingdom.bus.event import Event
from kingdom.court.general.context import GeneralContext, run_id_of_root, run_ids_since

NOW = datetime(2026, 2, 7, 10, tzinfo=UTC)


@pytest.mark.parametrize(("waited", "again"), [(-1, 0.5), (0, 0.5), (2, 2), (9, 9), (3600, 10)])
def test_new_questions_are_checked_often_and_old_ones_less_often(waited: float, again: float) -> None:
    context = GeneralContext(packages=dict, channel="", zone=ZoneInfo("UTC"), clock=lambda: NOW)
    envelope = Envelope(type="AssignmentGiven", occurred_at=NOW - timedelta(seconds=waited))
    deferred = context.defer(Event(None, envelope, attempt=1, fence=1), "no host has room")
    assert (deferred.after.total_seconds(), deferred.reason) == (again, "no host has room")


@pytest.mark.parametrize("zone", ["Pacific/Pago_Pago", "UTC", "Pacific/Kiritimati"])
@pytest.mark.parametrize("hours", range(0, 24, 3))
def test_a_run_of_a_general_is_recent_from_its_start_in_every_time_zone(zone: str, hours: int) -> None:
    start = NOW + timedelta(hours=hours)
    context = GeneralContext(packages=dict, channel="", zone=ZoneInfo(zone), clock=lambda: start)
    run_id = run_id_of_root(f"task-{context.today:%Y%m%d}-001")
    assert [after < run_id < before for after, before in run_ids_since(start)] == [False, True]
