"""The bench of starting a role measures every role, and fails if a bound does not hold."""

import json

import pytest

from bench.startup import ROLES
from tests.benches import bench

pytestmark = pytest.mark.benches


@pytest.mark.parametrize(("demand", "ends_with"), [("0.1", 0), ("100", 1)])
def test_every_role_is_measured_and_a_bound_can_fail(demand: str, ends_with: int) -> None:
    done = bench("startup", "--rounds", "1", "--demand", demand, "--json", "-", ends_with=ends_with)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert set(figures["roles"]) == set(ROLES)
    assert all(role["multiple"] > 1 and role["mebibytes"] > 1 for role in figures["roles"].values())
    assert figures["holds"] is (ends_with == 0)
    assert ("bound not kept" in done.stderr) is (ends_with == 1)
