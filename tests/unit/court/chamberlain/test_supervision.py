"""Outages of roles: noticed once each, and started again with growing pauses."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import msgspec

from kingdom.court.chamberlain.settings import HeartbeatSettings
from kingdom.court.chamberlain.supervision import Outages, is_known, silence

NOW = datetime(2026, 2, 7, 10, tzinfo=UTC)
SETTINGS = HeartbeatSettings()


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def restarts_until(end: float, *, alive_for: float | None = None) -> list[int]:
    """Return after how many seconds a role is started again that dies at once, or some time after each start."""
    outages, sign, found = Outages(), NOW, []
    for second in range(0, int(end), 30):
        now = NOW + seconds(second)
        outages = msgspec.convert(msgspec.to_builtins(outages), Outages)
        outages.look({"king": sign}, NOW, now, SETTINGS)
        if outages.due(["king"], now, SETTINGS):
            found.append(second)
            sign = now + seconds(alive_for) if alive_for is not None else sign
    return found


def test_a_role_is_missed_after_120_seconds_and_once_per_outage() -> None:
    outages = Outages()
    assert outages.look({"king": NOW}, NOW, NOW + seconds(120), SETTINGS) == []
    assert outages.look({"king": NOW, "envoy": NOW + seconds(100)}, NOW, NOW + seconds(121), SETTINGS) == ["king"]
    assert outages.look({"king": NOW}, NOW, NOW + seconds(500), SETTINGS) == []
    assert outages.look({"king": NOW + seconds(500)}, NOW, NOW + seconds(510), SETTINGS) == []
    assert outages.look({"king": NOW + seconds(500)}, NOW, NOW + seconds(700), SETTINGS) == ["king"]


def test_silence_counts_only_since_somebody_listens() -> None:
    outages, since = Outages(), NOW + seconds(9000)
    assert outages.look({"king": NOW}, since, since + seconds(120), SETTINGS) == []
    assert not is_known({"king": NOW}, "king", since, since + seconds(120), SETTINGS)
    assert outages.look({"king": NOW}, since, since + seconds(121), SETTINGS) == ["king"]
    assert is_known({"king": NOW}, "king", since, since + seconds(121), SETTINGS)
    assert is_known({"king": since}, "king", since, since, SETTINGS)


def test_a_role_that_ended_as_it_should_is_not_missed() -> None:
    outages = Outages()
    assert outages.look({}, NOW, NOW + seconds(500), SETTINGS) == []
    outages.look({"king": NOW}, NOW, NOW + seconds(500), SETTINGS)
    outages.look({}, NOW, NOW + seconds(530), SETTINGS)
    assert outages.roles == {}


def test_a_dead_role_is_started_at_once_and_then_after_longer_and_longer_pauses() -> None:
    assert restarts_until(4000) == [150, 270, 390, 510, 750, 1230, 2130, 3030, 3930]


def test_a_role_that_dies_soon_after_each_start_is_started_less_and_less_often() -> None:
    found = restarts_until(8000, alive_for=5)
    pauses = [later - earlier for earlier, later in pairwise(found)]
    assert pauses == sorted(pauses)
    assert (pauses[0] <= 150, pauses[-1] >= 900) == (True, True)


def test_only_silent_roles_of_this_machine_are_started() -> None:
    outages = Outages()
    outages.look({"king": NOW, "envoy": NOW, "sentinel": NOW + seconds(190)}, NOW, NOW + seconds(200), SETTINGS)
    assert outages.due(["king", "sentinel"], NOW + seconds(200), SETTINGS) == ["king"]


def test_silence_is_none_while_a_role_is_well() -> None:
    assert silence({"king": NOW}, "king", NOW + seconds(120), SETTINGS) is None
    assert silence({"king": NOW}, "king", NOW + seconds(121), SETTINGS) == seconds(121)
    assert silence({}, "king", NOW, SETTINGS) == timedelta.max
