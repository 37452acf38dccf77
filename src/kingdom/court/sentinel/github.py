"""Parse notifications and webhooks of GitHub. Their content is untrusted. Pure functions."""

import re
from collections.abc import Collection
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kingdom.court.documents import EventStatus, ExternalEvent
from kingdom.court.sentinel.github_activity import ActivitySource, DroppedActivity, GitHubActivity, event_type_of
from kingdom.court.sentinel.untrusted import (
    NAME_MAX,
    TEXT_MAX,
    TITLE_MAX,
    URL_MAX,
    clean_text,
    convert_untrusted,
    parse_time,
    repository_name,
    time_stamp,
)
from kingdom.errors import MalformedEvent

_THREAD_ID = re.compile(r"[A-Za-z0-9]{1,40}")
_REASON = re.compile(r"[a-z][a-z0-9_]{0,59}")
_SUBJECT_TYPE = re.compile(r"[A-Za-z]{1,40}")
_NUMBER = re.compile(r"/(?:pulls|issues)/([1-9][0-9]{0,14})$")
_COMMENT = re.compile(r"/((?:issues|pulls)/comments/[1-9][0-9]{0,17})$")
PULL_REQUEST = "PullRequest"
ISSUE = "Issue"
_Number = Annotated[int, Meta(ge=1, lt=10**18)]
_STATE_ACTIONS = {
    "pull_request": ("closed", "reopened", "synchronize", "ready_for_review", "converted_to_draft"),
    "issues": ("closed", "reopened"),
}
# For each webhook about a comment or a review: the field with the text, and the word for it in event ids.
_COMMENT_EVENTS = {
    ("issue_comment", "created"): ("comment", "comment"),
    ("pull_request_review", "submitted"): ("review", "review"),
    ("pull_request_review_comment", "created"): ("comment", "remark"),
}


class _Subject(msgspec.Struct):
    type: str
    title: str | None = None
    url: str | None = None
    latest_comment_url: str | None = None


class _Repository(msgspec.Struct):
    full_name: str
    id: _Number = 1


class _Notification(msgspec.Struct):
    id: str
    reason: str
    updated_at: str
    subject: _Subject
    repository: _Repository


class _User(msgspec.Struct):
    login: str


class _Branch(msgspec.Struct):
    ref: str


class _IssueOrPull(msgspec.Struct):
    """An issue or a pull request. If an issue is a pull request, its field `pull_request` is set."""

    number: _Number
    updated_at: str
    title: str | None = None
    url: str | None = None
    html_url: str | None = None
    body: str | None = None
    user: _User | None = None
    assignees: list[_User] = []
    requested_reviewers: list[Any] = []
    pull_request: dict[str, Any] | None = None
    base: _Branch | None = None


class CommentOrReview(msgspec.Struct):
    """A comment or a review."""

    id: _Number
    body: str | None = None
    user: _User | None = None
    html_url: str | None = None
    created_at: str | None = None
    submitted_at: str | None = None

    @property
    def at(self) -> datetime:
        """Return when the comment or review was written."""
        return parse_time(self.submitted_at or self.created_at or "")


class _Delivery(msgspec.Struct):
    """The common fields of webhooks about an issue or a pull request."""

    repository: _Repository
    sender: _User
    action: str = ""
    issue: _IssueOrPull | None = None
    pull_request: _IssueOrPull | None = None
    comment: CommentOrReview | None = None
    review: CommentOrReview | None = None
    requested_reviewer: _User | None = None
    assignee: _User | None = None


def parse_notification(document: Any, now: datetime) -> GitHubActivity:
    """Parse a notification, or raise MalformedEvent."""
    notification = convert_untrusted(document, _Notification)
    repo, at = repository_name(notification.repository.full_name), parse_time(notification.updated_at)
    reason, subject_type = notification.reason, notification.subject.type
    for pattern, text in ((_THREAD_ID, notification.id), (_REASON, reason), (_SUBJECT_TYPE, subject_type)):
        if not pattern.fullmatch(text):
            raise MalformedEvent("the id, reason or type of a notification has unexpected characters")
    kind, priority = event_type_of(notification.subject.type, notification.reason)
    url = clean_text(notification.subject.url, URL_MAX)
    number = int(found[1]) if (found := _NUMBER.search(url)) else None
    latest = clean_text(notification.subject.latest_comment_url, URL_MAX)
    is_review = not latest and notification.subject.type == PULL_REQUEST and number is not None
    return GitHubActivity(
        event=ExternalEvent(
            id=f"evt-github-{notification.id}-{time_stamp(at)}",
            type=kind,
            source="github",
            repo=repo,
            payload={
                "reason": notification.reason,
                "subject_title": clean_text(notification.subject.title, TITLE_MAX),
                "subject_url": url,
                "subject_type": notification.subject.type,
                "updated_at": at.isoformat(),
                "number": number,
            },
            priority=priority,
            created_at=now,
            status=EventStatus.PENDING,
        ),
        source=ActivitySource.POLL,
        subject=f"{repo}#{number}" if number else f"{repo}:{notification.id}",
        at=at,
        reason=notification.reason,
        comment=found[1] if (found := _COMMENT.search(latest)) else "",
        details_url=latest if found else f"{url}/reviews" if is_review else "",
    )


def parse_webhook(
    event: str, document: Any, logins: Collection[str], now: datetime
) -> GitHubActivity | DroppedActivity:
    """Parse a webhook, or raise MalformedEvent. `logins` are our own accounts."""
    action = document.get("action", "") if isinstance(document, dict) else ""
    if not _is_known(event, action):
        return DroppedActivity("this webhook becomes no event")
    webhook = convert_untrusted(document, _Delivery)
    item = webhook.pull_request or webhook.issue
    if item is None:
        raise MalformedEvent("this is about neither an issue nor a pull request")
    our_logins = {login.lower() for login in logins}
    if (event, action) in _COMMENT_EVENTS:
        return _comment_activity(event, webhook, item, our_logins, now)
    if action in ("review_requested", "assigned"):
        asked = webhook.requested_reviewer if action == "review_requested" else webhook.assignee
        if asked is None or asked.login.lower() not in our_logins:
            return DroppedActivity("the request is for another account")
        reason = "review_requested" if action == "review_requested" else "assign"
        return _activity(webhook, item, reason, action, now)
    if action == "opened":
        if not _mentions(item.body, our_logins):
            return DroppedActivity("none of our accounts is mentioned")
        return _activity(webhook, item, "mention", action, now, text=item.body)
    return _activity(webhook, item, "state_change", action, now, concerns_us=_is_involved(item, our_logins))


def with_comment(
    activity: GitHubActivity, comment_or_review: CommentOrReview | None, within: tuple[datetime, datetime]
) -> GitHubActivity:
    """Return an activity with the comment that caused it, if the comment's time matches."""
    if comment_or_review is None or not within[0] <= comment_or_review.at <= within[1]:
        return msgspec.structs.replace(activity, comment="")
    actor = comment_or_review.user.login if comment_or_review.user else ""
    more = {"actor": clean_text(actor, NAME_MAX), "text": clean_text(comment_or_review.body, TEXT_MAX)}
    more["html_url"] = clean_text(comment_or_review.html_url, URL_MAX)
    event = msgspec.structs.replace(activity.event, payload={**activity.event.payload, **more})
    return msgspec.structs.replace(activity, event=event, actor=actor)


def _is_known(event: str, action: object) -> bool:
    if not isinstance(action, str):
        return False
    if event in _STATE_ACTIONS and action in (*_STATE_ACTIONS[event], "assigned", "opened"):
        return True
    return (event, action) in _COMMENT_EVENTS or (event, action) == ("pull_request", "review_requested")


def _comment_activity(
    event: str, webhook: _Delivery, item: _IssueOrPull, our_logins: set[str], now: datetime
) -> GitHubActivity | DroppedActivity:
    field, word = _COMMENT_EVENTS[event, webhook.action]
    comment_or_review = webhook.review if field == "review" else webhook.comment
    if comment_or_review is None:
        raise MalformedEvent(f"the field {field} is missing")
    mentioned = _mentions(comment_or_review.body, our_logins)
    if word == "remark" and not mentioned:
        return DroppedActivity("the webhook of the review covers this comment")
    path = {"comment": "issues/comments", "remark": "pulls/comments"}.get(word)
    return _activity(
        webhook,
        item,
        "mention" if mentioned else "comment",
        f"{word}.{comment_or_review.id}",
        now,
        at=comment_or_review.at,
        text=comment_or_review.body,
        html_url=comment_or_review.html_url,
        comment=f"{path}/{comment_or_review.id}" if path else "",
        concerns_us=mentioned or _is_involved(item, our_logins),
    )


def _activity(
    webhook: _Delivery,
    item: _IssueOrPull,
    reason: str,
    id_part: str,
    now: datetime,
    *,
    at: datetime | None = None,
    text: str | None = None,
    html_url: str | None = None,
    comment: str = "",
    concerns_us: bool = True,
) -> GitHubActivity:
    repo, at = repository_name(webhook.repository.full_name), at or parse_time(item.updated_at)
    is_pull = webhook.pull_request is not None or item.pull_request is not None
    subject = PULL_REQUEST if is_pull else ISSUE
    kind, priority = event_type_of(subject, reason)
    url = clean_text(item.url, URL_MAX)
    payload = {
        "reason": reason,
        "subject_title": clean_text(item.title, TITLE_MAX),
        "subject_url": re.sub(r"/issues/(?=[0-9]+$)", "/pulls/", url) if is_pull else url,
        "subject_type": subject,
        "updated_at": at.isoformat(),
        "number": item.number,
        "action": webhook.action,
        "actor": clean_text(webhook.sender.login, NAME_MAX),
        "text": clean_text(text, TEXT_MAX),
        "html_url": clean_text(html_url or item.html_url, URL_MAX),
        "base": clean_text(item.base.ref, NAME_MAX) if item.base else None,
    }
    return GitHubActivity(
        event=ExternalEvent(
            id=f"evt-github-hook-{webhook.repository.id}-{item.number}-{id_part.replace('_', '-')}-{time_stamp(at)}",
            type=kind,
            source="github",
            repo=repo,
            payload=payload,
            priority=priority,
            created_at=now,
            status=EventStatus.PENDING,
        ),
        source=ActivitySource.HOOK,
        subject=f"{repo}#{item.number}",
        at=at,
        reason=reason,
        actor=webhook.sender.login,
        comment=comment,
        concerns_us=concerns_us,
    )


def _is_involved(item: _IssueOrPull, our_logins: set[str]) -> bool:
    """Return whether we opened an issue or pull request, are assigned to it, or are asked to review it."""
    people = [item.user, *item.assignees]
    named = [person.login for person in people if person]
    # Requested teams are in the same list and have no login.
    named += [str(person.get("login", "")) for person in item.requested_reviewers if isinstance(person, dict)]
    return any(login.lower() in our_logins for login in named)


def _mentions(text: str | None, our_logins: set[str]) -> bool:
    names = "|".join(re.escape(login) for login in sorted(our_logins))
    return (
        bool(our_logins)
        and re.search(rf"(?<![\w/`])@(?:{names})(?![\w-])", (text or "")[:TEXT_MAX], re.IGNORECASE) is not None
    )
