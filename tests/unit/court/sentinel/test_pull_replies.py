"""Events of followed pull requests."""

from kingdom.court.sentinel.pull_replies import CheckDetails, CheckRun, checks_event
from tests.unit.court.followups.test_rules import FOLLOWUP, HEAD
from tests.unit.workflow.model.scene import NOON


def test_checks_with_the_same_name_tell_no_number_of_tests() -> None:
    runs = [CheckRun(id=number, name=name, conclusion="success") for number, name in enumerate(("a", "a", "b"), 1)]
    details = {number: CheckDetails(tests=40 + number) for number in (1, 3)}
    event = checks_event(FOLLOWUP, HEAD, runs, (), details, NOON)
    assert event
    assert event.payload["tests"] == {"b": 43}
