"""Events from GitHub's notifications and webhooks: type, priority, id and payload. Invalid input makes no event."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from kingdom.court.documents import ExternalEvent, Priority
from kingdom.court.sentinel.github import CommentOrReview, parse_notification, parse_webhook, with_comment
from kingdom.court.sentinel.github_activity import DroppedActivity, GitHubActivity
from kingdom.errors import MalformedEvent
from tests.unit.court.sentinel.bodies import (
    COMMENT_URL,
    ISSUE_URL,
    PULL_URL,
    US,
    commented,
    notification,
    review_requested,
    thing,
    user,
    webhook,
)

NOW = datetime(2026, 2, 7, 10, 5, tzinfo=UTC)


def hooked(event: str, document: Any) -> GitHubActivity:
    activity = parse_webhook(event, document, [US], NOW)
    assert isinstance(activity, GitHubActivity), activity
    return activity


@pytest.mark.parametrize(
    ("subject", "reason", "kind", "priority"),
    [
        ("PullRequest", "review_requested", "github.pr.review_requested", "normal"),
        ("PullRequest", "assign", "github.pr.assigned", "normal"),
        ("PullRequest", "mention", "github.pr.mentioned", "normal"),
        ("PullRequest", "comment", "github.pr.comment", "low"),
        ("PullRequest", "state_change", "github.pr.state_change", "low"),
        ("PullRequest", "author", "github.notification.author", "low"),
        ("Issue", "assign", "github.issue.assigned", "normal"),
        ("Issue", "mention", "github.issue.mentioned", "low"),
        ("Issue", "comment", "github.issue.comment", "low"),
        ("Issue", "state_change", "github.issue.state_change", "low"),
        ("Issue", "review_requested", "github.notification.review_requested", "low"),
        ("CheckSuite", "ci_activity", "github.notification.ci_activity", "low"),
        ("Release", "subscribed", "github.notification.subscribed", "low"),
    ],
)
def test_the_reason_and_the_subject_of_a_notification_make_the_type(
    subject: str, reason: str, kind: str, priority: str
) -> None:
    event = parse_notification(notification(reason, subject), NOW).event
    assert (event.type, event.priority) == (kind, priority)


def test_a_notification_becomes_an_event_with_the_id_and_the_payload_of_its_kind() -> None:
    event = parse_notification(notification(), NOW).event
    assert event.id == "evt-github-12345678-20260207100000"
    assert (event.repo, event.source, event.status, event.created_at) == ("acme/app", "github", "pending", NOW)
    assert event.payload == {
        "reason": "review_requested",
        "subject_title": "Add rocket",
        "subject_url": PULL_URL,
        "subject_type": "PullRequest",
        "updated_at": "2026-02-07T10:00:00+00:00",
        "number": 7,
    }


def test_the_time_in_an_id_is_in_utc() -> None:
    event = parse_notification(notification(updated_at="2026-02-07T19:00:00+09:00"), NOW).event
    assert event.id.endswith("-20260207100000")


def test_a_notification_without_a_number_is_its_own_subject() -> None:
    subject = {"title": "CI failed", "url": None, "latest_comment_url": None, "type": "CheckSuite"}
    activity = parse_notification(notification("ci_activity") | {"subject": subject}, NOW)
    assert (activity.event.payload["number"], activity.subject) == (None, "acme/app:12345678")
    assert activity.details_url == ""


@pytest.mark.parametrize(
    "broken",
    [
        {"id": "../../etc/passwd"},
        {"id": ""},
        {"id": 5},
        {"id": "1" * 1000},
        {"reason": "Rm -rf"},
        {"reason": None},
        {"updated_at": "yesterday"},
        {"updated_at": "2026-02-07T10:00:00"},
        {"updated_at": "0001-01-01T00:00:00+14:00"},
        {"subject": None},
        {"subject": {"type": "A/B"}},
        {"repository": {"full_name": "../.."}},
        {"repository": {"full_name": "acme/.."}},
        {"repository": {"full_name": "acme/app\nHost: x"}},
        {"repository": {"full_name": "\N{CYRILLIC SMALL LETTER A}cme/app"}},
    ],
)
def test_an_invalid_notification_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(MalformedEvent):
        parse_notification(notification() | broken, NOW)


@pytest.mark.parametrize("document", [None, 5, "text", [], {}, {"id": "1"}])
def test_a_document_that_is_not_a_notification_is_refused(document: Any) -> None:
    with pytest.raises(MalformedEvent):
        parse_notification(document, NOW)


def test_texts_of_strangers_are_bounded_and_storable() -> None:
    subject = {"title": "\x00\ud800" + "x" * 10_000_00, "url": PULL_URL, "type": "PullRequest"}
    title = parse_notification(notification() | {"subject": subject}, NOW).event.payload["subject_title"]
    assert len(title) == 500
    assert "\x00" not in title
    assert title.encode()


def test_the_actor_is_taken_only_from_a_comment_of_the_same_time() -> None:
    subject = {"title": "t", "url": PULL_URL, "latest_comment_url": COMMENT_URL, "type": "PullRequest"}
    activity = parse_notification(notification() | {"subject": subject}, NOW)
    assert (activity.comment, activity.details_url) == ("issues/comments/99", COMMENT_URL)
    comment = msgspec.convert(
        {"id": 99, "body": "hi", "user": user("octocat"), "created_at": "2026-02-07T09:59:58Z"}, CommentOrReview
    )
    around = (datetime(2026, 2, 7, 9, 59, 30, tzinfo=UTC), datetime(2026, 2, 7, 10, 0, 2, tzinfo=UTC))
    known = with_comment(activity, comment, around)
    assert (known.actor, known.comment, known.event.payload["text"]) == ("octocat", "issues/comments/99", "hi")
    earlier = msgspec.structs.replace(comment, created_at="2026-02-07T08:00:00Z")
    assert with_comment(activity, earlier, around).comment == ""
    assert with_comment(activity, earlier, around).actor == ""


def test_a_webhook_that_asks_us_for_a_review_becomes_an_event() -> None:
    activity = hooked("pull_request", review_requested())
    event = activity.event
    assert (event.type, event.priority, event.repo) == ("github.pr.review_requested", Priority.NORMAL, "acme/app")
    assert event.id == "evt-github-hook-5-7-review-requested-20260207100000"
    assert event.payload["reason"] == "review_requested"
    assert (event.payload["number"], event.payload["actor"]) == (7, "octocat")
    assert ExternalEvent.read(msgspec.to_builtins(event)) == event


@pytest.mark.parametrize("login", ["somebody", "kingdom-bot2"])
def test_a_review_by_another_person_is_ignored(login: str) -> None:
    assert isinstance(parse_webhook("pull_request", review_requested(login), [US], NOW), DroppedActivity)


def test_logins_are_compared_without_regard_to_case() -> None:
    assert hooked("pull_request", review_requested("Kingdom-Bot")).event.type == "github.pr.review_requested"


@pytest.mark.parametrize(
    ("event", "document", "kind", "reason", "concerns_us"),
    [
        ("issue_comment", commented("hello"), "github.pr.comment", "comment", False),
        ("issue_comment", commented("hello", author=US), "github.pr.comment", "comment", True),
        ("issue_comment", commented(f"@{US}: look"), "github.pr.mentioned", "mention", True),
        ("issue_comment", commented(f"@{US}", pull=False), "github.issue.mentioned", "mention", True),
        ("issue_comment", commented(f"@{US}-2 and x@{US}"), "github.pr.comment", "comment", False),
        (
            "pull_request_review",
            webhook(
                "submitted",
                pull_request=thing(pull=True, author=US),
                review={"id": 3, "body": None, "submitted_at": "2026-02-07T10:00:00Z"},
            ),
            "github.pr.comment",
            "comment",
            True,
        ),
        (
            "issues",
            webhook("assigned", issue=thing(pull=False), assignee=user(US)),
            "github.issue.assigned",
            "assign",
            True,
        ),
        (
            "pull_request",
            webhook("assigned", pull_request=thing(pull=True), assignee=user(US)),
            "github.pr.assigned",
            "assign",
            True,
        ),
        (
            "pull_request",
            webhook("opened", pull_request=thing(pull=True, body=f"cc @{US}")),
            "github.pr.mentioned",
            "mention",
            True,
        ),
        (
            "pull_request",
            webhook("synchronize", pull_request=thing(pull=True, requested_reviewers=[user(US)])),
            "github.pr.state_change",
            "state_change",
            True,
        ),
        ("issues", webhook("closed", issue=thing(pull=False)), "github.issue.state_change", "state_change", False),
    ],
)
def test_a_webhook_is_read_as_what_happened(
    event: str, document: Any, kind: str, reason: str, *, concerns_us: bool
) -> None:
    activity = hooked(event, document)
    assert (activity.event.type, activity.reason, activity.concerns_us) == (kind, reason, concerns_us)
    assert ExternalEvent.read(msgspec.to_builtins(activity.event)) == activity.event


def test_a_comment_on_a_pull_request_links_to_the_pull_request() -> None:
    activity = hooked("issue_comment", commented("hello"))
    assert activity.event.payload["subject_url"] == PULL_URL
    assert activity.event.payload["subject_type"] == "PullRequest"
    assert hooked("issue_comment", commented("hello", pull=False)).event.payload["subject_url"] == ISSUE_URL
    assert (activity.comment, activity.subject) == ("issues/comments/99", "acme/app#7")


@pytest.mark.parametrize(
    ("event", "action"), [("push", ""), ("pull_request", "labeled"), ("issues", "edited"), ("x" * 60, "created")]
)
def test_activity_without_an_event_type_is_dropped(event: str, action: str) -> None:
    assert isinstance(parse_webhook(event, {"action": action}, [US], NOW), DroppedActivity)


@pytest.mark.parametrize(
    "broken",
    [
        {"pull_request": None},
        {"pull_request": []},
        {"pull_request": {"number": "7", "updated_at": "2026-02-07T10:00:00Z"}},
        {"pull_request": {"number": -7, "updated_at": "2026-02-07T10:00:00Z"}},
        {"pull_request": {"number": 10**30, "updated_at": "2026-02-07T10:00:00Z"}},
        {"pull_request": {"number": 7, "updated_at": 5}},
        {"repository": {"id": 5, "full_name": "../../x"}},
        {"repository": {"id": "5", "full_name": "acme/app"}},
        {"repository": None},
        {"sender": None},
        {"sender": {"login": 5}},
        {"requested_reviewer": "kingdom-bot"},
    ],
)
def test_an_invalid_webhook_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(MalformedEvent):
        parse_webhook("pull_request", review_requested() | broken, [US], NOW)


def test_a_review_comment_is_reported_with_its_review_unless_it_mentions_us() -> None:
    remark = {"id": 4, "body": "nit", "created_at": "2026-02-07T10:00:00Z"}
    document = webhook("created", pull_request=thing(pull=True, author=US), comment=remark)
    assert isinstance(parse_webhook("pull_request_review_comment", document, [US], NOW), DroppedActivity)
    remark["body"] = f"@{US} nit"
    assert hooked("pull_request_review_comment", document).event.type == "github.pr.mentioned"
