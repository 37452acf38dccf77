"""The race runs a part of itself, reports processor time with each rate, and can fail."""

import json

import pytest

from tests.benches import bench

SHORT = ("race", "--sides", "bare,kingdom", "--columns", "drain", "--events", "500", "--rounds", "1", "--more", "1")


@pytest.mark.benches
def test_a_part_of_the_race_ends_with_its_figures() -> None:
    # A short turn on a busy machine says little, so the bound is ten times less strict than for the whole race.
    done = bench(*SHORT, "--demand", "0.1", "--json", "-", ends_with=0)
    race = json.loads(done.stdout.splitlines()[-1])
    assert race["holds"]
    assert (race["rounds"], race["roundsWithoutPeers"]) == (1, 1)
    assert [bound["name"] for bound in race["bounds"]] == ["kingdom, drain, processor time as a multiple of bare"]
    for side in ("bare", "kingdom"):
        cell = race["sides"][side]["drain"]
        assert min(cell["rate"], cell["clientMicroseconds"], cell["serverMicroseconds"]) > 0


@pytest.mark.benches
def test_the_race_fails_if_its_demand_is_too_strict() -> None:
    done = bench(*SHORT, "--demand", "100", ends_with=1)
    assert "bound not kept: kingdom, drain, processor time as a multiple of bare: " in done.stderr
    assert not json.loads(done.stdout.splitlines()[-1])["holds"]
