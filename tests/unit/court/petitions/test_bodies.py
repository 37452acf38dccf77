"""The bodies of petitions are parsed strictly, and Kingdom fills in the fields that it knows."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kingdom.court.petitions.bodies import KINDS, AssignmentSubject, GithubComment, read_body, stored_body
from kingdom.court.sentinel.untrusted import repository_name
from kingdom.errors import MalformedEvent

ORIGIN = AssignmentSubject(repo="acme/rocket", number=7, ticket="QP-1", channel="dev")
GOOD: list[tuple[str, dict[str, Any], str]] = [
    ("github.comment", {"body": "Well done."}, "acme/rocket#7"),
    ("github.comment", {"repo": "Acme/Rocket", "number": 9, "body": "Well done."}, "acme/rocket#9"),
    ("github.comment", {"repo": "acme/.github", "number": 9, "body": "Well done."}, "acme/.github#9"),
    ("github.review", {"event": "APPROVE"}, "acme/rocket#7"),
    ("github.review", {"event": "COMMENT", "body": "Hm."}, "acme/rocket#7"),
    ("github.pull_request", {"title": "Repair it"}, "acme/rocket"),
    ("jira.comment", {"body": "Hm."}, "QP-1"),
    ("jira.transition", {"key": "QP-2", "to": "Done"}, "QP-2"),
    ("slack.message", {"text": "Hello."}, "dev"),
    ("slack.message", {"channel": "#ops", "text": "Hello."}, "#ops"),
]
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("github.comment", {}, "body is missing"),
    ("github.comment", {"body": " \n"}, "body is missing"),
    ("github.comment", {"body": "x" * 60_001}, "60000"),
    ("github.comment", {"body": "Hm.", "silent": True}, "silent"),
    ("github.comment", {"repo": "acme/..", "body": "Hm."}, "repo"),
    ("github.comment", {"repo": "acme/rocket/../../evil/x", "number": 1, "body": "Hm."}, "repo"),
    ("github.comment", {"repo": "acme/rocket\n", "number": 1, "body": "Hm."}, "repo"),
    ("github.comment", {"repo": "acme/other", "body": "Hm."}, "number is missing"),
    ("github.comment", {"number": -1, "body": "Hm."}, "number"),
    ("github.review", {"event": "MERGE", "body": "Hm."}, "MERGE"),
    ("github.review", {"event": "REQUEST_CHANGES"}, "needs a body"),
    ("github.pull_request", {}, "title is missing"),
    ("github.pull_request", {"title": "x", "base": "../main"}, "base"),
    ("github.pull_request", {"title": "x", "base": "a..b"}, "base"),
    ("jira.comment", {"key": "QP-1/../QP-2", "body": "Hm."}, "key"),
    ("jira.comment", {"key": "qp-1", "body": "Hm."}, "key"),
    ("jira.transition", {"key": "QP-1"}, "to"),
    ("slack.message", {"channel": "a b", "text": "Hm."}, "channel"),
    ("slack.message", {"text": ""}, "text"),
]


@pytest.mark.parametrize(("kind", "raw", "target"), GOOD)
def test_values_of_the_assignment_are_filled_in(kind: str, raw: dict[str, Any], target: str) -> None:
    assert read_body(kind, raw, ORIGIN).target == target


@pytest.mark.parametrize(("kind", "raw", "complaint"), BAD)
def test_a_document_that_is_not_a_petition_is_refused_with_the_reason(
    kind: str, raw: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(MalformedEvent, match=f"this is not a valid {kind}") as reported:
        read_body(kind, raw, ORIGIN)
    assert complaint in str(reported.value)


def test_a_target_that_follows_from_nothing_must_be_given() -> None:
    with pytest.raises(MalformedEvent, match="repo is missing"):
        read_body("github.comment", {"number": 7, "body": "Hm."}, AssignmentSubject())
    with pytest.raises(MalformedEvent, match="key is missing"):
        read_body("jira.comment", {"body": "Hm."}, AssignmentSubject())


def test_a_repository_that_the_sentinel_accepts_can_be_the_target_of_a_petition() -> None:
    body = read_body(
        "github.comment", {"body": "Hm."}, AssignmentSubject(repo=repository_name("anna_acme/shop"), number=7)
    )
    assert stored_body(GithubComment, msgspec.to_builtins(body)) == body


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ("github.pull_request", {"title": "Repair it"}),
        ("jira.comment", {"body": "Hm."}),
        ("slack.message", GOOD[-2][1]),
    ],
)
def test_values_of_the_assignment_are_checked_as_strictly(kind: str, raw: dict[str, Any]) -> None:
    with pytest.raises(MalformedEvent, match=f"this is not a valid {kind}"):
        read_body(kind, raw, AssignmentSubject(repo="no slash", ticket="no key", channel="no channel"))


def test_the_agent_cannot_set_the_branch_or_the_commit_of_a_pull_request() -> None:
    raw = {"title": "Repair it", "head": "main", "head_sha": "0" * 40}
    document = msgspec.to_builtins(read_body("github.pull_request", raw, ORIGIN))
    assert (document["head"], document["head_sha"]) == ("", "")


@pytest.mark.parametrize(
    ("kind", "raw", "stays"),
    [
        ("github.comment", {"number": 7, "body": "Hm."}, True),
        ("github.comment", {"number": 8, "body": "Hm."}, False),
        ("github.comment", {"repo": "acme/other", "number": 7, "body": "Hm."}, False),
        ("jira.comment", {"key": "QP-2", "body": "Hm."}, False),
        ("slack.message", {"channel": "#dev", "text": "Hm."}, True),
        ("slack.message", {"channel": "ops", "text": "Hm."}, False),
    ],
)
def test_a_petition_is_about_its_assignment_only_if_the_target_is_the_same(
    kind: str, raw: dict[str, Any], *, stays: bool
) -> None:
    assert read_body(kind, raw, ORIGIN).is_about(ORIGIN) is stays


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(["repo", "number", "body", "event", "title", "base", "key", "to", "channel", "text", "other"])


@given(kind=st.sampled_from(sorted(KINDS)), raw=st.dictionaries(names, json_values, max_size=5))
def test_every_response_of_a_model_is_either_read_or_refused(kind: str, raw: dict[str, Any]) -> None:
    try:
        body = read_body(kind, raw, ORIGIN)
    except MalformedEvent:
        return
    assert read_body(kind, msgspec.to_builtins(body), ORIGIN) == body
