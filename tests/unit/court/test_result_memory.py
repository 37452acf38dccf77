"""Which results later runs may read, and what an assignment is about."""

from typing import Any

import pytest

from kingdom.court.documents import Assignment, AssignmentStatus, Priority
from kingdom.court.package import GeneralPolicy
from kingdom.court.result_memory import is_by_permitted_person, subject_of
from tests.unit.court.king.making import NOON


def assignment(event_id: str = "evt-github-1", **fields: Any) -> Assignment:
    reported = {"id": "task-20260101-001", "target_general": "gen-pr", "type": "github.pr.comment", "payload": {}}
    state = {"priority": Priority.NORMAL, "created_at": NOON, "status": AssignmentStatus.COMPLETED}
    return Assignment(**{**reported, **state, "event_id": event_id, **fields})


@pytest.mark.parametrize(
    ("event_id", "payload", "people", "permitted"),
    [
        ("evt-github-1", {"actor": "anna"}, ["anna"], True),
        ("evt-github-1", {"actor": "Anna"}, ["anna", "ben"], True),
        ("evt-github-1", {"actor": "ci[bot]"}, ["*[bot]"], True),
        ("evt-github-1", {"actor": "annabel"}, ["anna"], False),
        ("evt-github-1", {"actor": "anna"}, [], False),
        ("evt-github-1", {"user": "anna"}, ["anna"], False),
        ("evt-github-1", {"actor": ["anna"]}, ["anna"], False),
        ("evt-github-1", {}, ["*"], True),
        ("evt-slack-app_mention-C1-1.2", {"user": "U1", "actor": "U2"}, ["U1"], True),
        ("evt-slack-app_mention-C1-1.2", {"user": "U2", "actor": "U1"}, ["U1"], False),
        ("evt-jira-QP-1-20260101000000", {"key": "QP-1"}, ["anna"], False),
        ("evt-jira-QP-1-20260101000000", {"key": "QP-1"}, ["*"], True),
        ("evt-jira-QP-1-20260101000000", {"key": "QP-1", "actor": "anna", "": "anna"}, ["anna"], False),
        ("evt-cli-release-1", {}, [], True),
    ],
)
def test_a_result_is_kept_for_later_runs_if_a_permitted_person_caused_its_event(
    event_id: str, payload: dict[str, Any], people: list[str], *, permitted: bool
) -> None:
    policy = GeneralPolicy(result_people=tuple(people))
    assert is_by_permitted_person(assignment(event_id, payload=payload), policy) is permitted


def test_a_schedule_needs_no_permission_and_is_its_own_subject() -> None:
    fired = assignment("schedule-morning", cause="evt-schedule-morning-20260101090000")
    assert is_by_permitted_person(fired, GeneralPolicy())
    assert subject_of(fired) == "schedule-morning"


@pytest.mark.parametrize(
    ("fields", "subject"),
    [
        ({"subject": "acme/shop#7", "payload": {"number": 8}, "repo": "acme/shop"}, "acme/shop#7"),
        ({"payload": {"number": 8}, "repo": "acme/shop"}, "acme/shop#8"),
        ({"payload": {"key": "QP-1"}, "repo": "acme/shop"}, "QP-1"),
        ({"payload": {"number": 8}}, ""),
        ({"payload": {"key": 3, "number": [1]}, "repo": "acme/shop"}, ""),
    ],
)
def test_the_subject_is_the_supersedes_field_or_the_pull_request_or_the_ticket(
    fields: dict[str, Any], subject: str
) -> None:
    assert subject_of(assignment(**fields)) == subject
