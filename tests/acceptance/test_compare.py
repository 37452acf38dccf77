import json

import pytest

from tests.benches import bench

pytestmark = pytest.mark.benches
SHORT = ("compare", "--events", "1000", "--rounds", "3")


def test_the_bus_stays_within_sight_of_a_bare_loop() -> None:
    done = bench(*SHORT, "--demand", "0.1", ends_with=0)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert set(figures["shares"]) == {"publish one", "publish 100", "drain"}
    assert figures["failed"] == []


def test_the_comparison_fails_where_more_is_demanded_than_the_bare_loop_gives() -> None:
    done = bench(*SHORT, "--demand", "100", ends_with=1)
    assert json.loads(done.stdout.splitlines()[-1])["failed"] == ["publish one", "publish 100", "drain"]
