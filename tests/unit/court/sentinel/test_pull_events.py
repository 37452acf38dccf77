"""Events of followed pull requests."""

import msgspec
import pytest

from kingdom.court.sentinel.pull_events import CheckDetails, CheckRun, checks_event
from tests.unit.court.followups.test_rules import FOLLOWUP, HEAD
from tests.unit.workflow.model.scene import NOON


def test_checks_with_the_same_name_tell_no_number_of_tests() -> None:
    runs = [CheckRun(id=number, name=name, conclusion="success") for number, name in enumerate(("a", "a", "b"), 1)]
    details = {number: CheckDetails(tests=40 + number) for number in (1, 3)}
    event = checks_event(FOLLOWUP, HEAD, runs, (), details, NOON)
    assert event
    assert event.payload["tests"] == {"b": 43}


@pytest.mark.parametrize(
    ("runs", "tests"),
    [
        pytest.param([], {"a": 0}, id="removed"),
        pytest.param([CheckRun(id=2, name="b", conclusion="success")], {"a": 0}, id="renamed"),
        pytest.param([CheckRun(id=1, name="a", conclusion="skipped")], {"a": 0}, id="skipped"),
        pytest.param([CheckRun(id=1, name="a", conclusion="success")], {}, id="without a log"),
    ],
)
def test_a_failed_check_that_is_removed_or_skipped_ran_no_tests(runs: list[CheckRun], tests: dict[str, int]) -> None:
    followup = msgspec.structs.replace(FOLLOWUP, failing=("a",), tests={"a": 41})
    event = checks_event(followup, HEAD, [*runs, CheckRun(id=3, name="c", conclusion="success")], (), {}, NOON)
    assert event
    assert event.payload["tests"] == tests
