"""Outages of roles, noticed once each."""

from datetime import UTC, datetime, timedelta

from kingdom.court.chamberlain.settings import HeartbeatSettings
from kingdom.court.chamberlain.supervision import Outages, is_role_known, silence_of

NOW = datetime(2026, 2, 7, 10, tzinfo=UTC)
SETTINGS = HeartbeatSettings()


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def test_a_role_is_missed_after_120_seconds_and_once_per_outage() -> None:
    outages = Outages()
    assert outages.update({"king": NOW}, NOW, NOW + seconds(120), SETTINGS) == []
    assert outages.update({"king": NOW, "envoy": NOW + seconds(100)}, NOW, NOW + seconds(121), SETTINGS) == ["king"]
    assert outages.update({"king": NOW}, NOW, NOW + seconds(500), SETTINGS) == []
    assert outages.update({"king": NOW + seconds(500)}, NOW, NOW + seconds(510), SETTINGS) == []
    assert outages.update({"king": NOW + seconds(500)}, NOW, NOW + seconds(700), SETTINGS) == ["king"]


def test_silence_counts_only_from_the_time_at_which_the_chamberlain_began_to_observe() -> None:
    outages, since = Outages(), NOW + seconds(9000)
    assert outages.update({"king": NOW}, since, since + seconds(120), SETTINGS) == []
    assert not is_role_known({"king": NOW}, "king", since, since + seconds(120), SETTINGS)
    assert outages.update({"king": NOW}, since, since + seconds(121), SETTINGS) == ["king"]
    assert is_role_known({"king": NOW}, "king", since, since + seconds(121), SETTINGS)
    assert is_role_known({"king": since}, "king", since, since, SETTINGS)


def test_a_role_that_ended_as_it_should_is_not_missed() -> None:
    outages = Outages()
    assert outages.update({}, NOW, NOW + seconds(500), SETTINGS) == []
    outages.update({"king": NOW}, NOW, NOW + seconds(500), SETTINGS)
    outages.update({}, NOW, NOW + seconds(530), SETTINGS)
    assert outages.roles == {}


def test_a_role_with_a_recent_heartbeat_has_no_silence() -> None:
    assert silence_of({"king": NOW}, "king", NOW + seconds(120), SETTINGS) is None
    assert silence_of({"king": NOW}, "king", NOW + seconds(121), SETTINGS) == seconds(121)
    assert silence_of({}, "king", NOW, SETTINGS) == timedelta.max
