"""Notifications and webhooks of GitHub, read as what happened. Pure; everything in them is text of strangers."""

import re
from collections.abc import Collection
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kingdom.court.documents import EventStatus, ExternalEvent
from kingdom.court.sentinel.happening import Dropped, Happening, Source, type_of
from kingdom.court.sentinel.untrusted import (
    NAME_MAX,
    TEXT_MAX,
    TITLE_MAX,
    URL_MAX,
    clean,
    fitted,
    moment,
    repository,
    stamp,
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
_STATES = {
    "pull_request": ("closed", "reopened", "synchronize", "ready_for_review", "converted_to_draft"),
    "issues": ("closed", "reopened"),
}
# What is said, by the event that tells of it: the field that holds it, and what it is called in ids.
_SAID = {
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


class _Thing(msgspec.Struct):
    """An issue or a pull request; an issue that is one points to it."""

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


class Said(msgspec.Struct):
    """A comment or a review."""

    id: _Number
    body: str | None = None
    user: _User | None = None
    html_url: str | None = None
    created_at: str | None = None
    submitted_at: str | None = None

    @property
    def at(self) -> datetime:
        """Return when it was said."""
        return moment(self.submitted_at or self.created_at or "")


class _Delivery(msgspec.Struct):
    """What every webhook about an issue or a pull request carries."""

    repository: _Repository
    sender: _User
    action: str = ""
    issue: _Thing | None = None
    pull_request: _Thing | None = None
    comment: Said | None = None
    review: Said | None = None
    requested_reviewer: _User | None = None
    assignee: _User | None = None


def parse_notification(document: Any, now: datetime) -> Happening:
    """Read one notification; one that makes no sense is refused as malformed."""
    told = fitted(document, _Notification)
    repo, at = repository(told.repository.full_name), moment(told.updated_at)
    for pattern, text in ((_THREAD_ID, told.id), (_REASON, told.reason), (_SUBJECT_TYPE, told.subject.type)):
        if not pattern.fullmatch(text):
            raise MalformedEvent("a notification has an id, a reason and a type of other letters than GitHub's")
    kind, priority = type_of(told.subject.type, told.reason)
    url = clean(told.subject.url, URL_MAX)
    number = int(found[1]) if (found := _NUMBER.search(url)) else None
    latest = clean(told.subject.latest_comment_url, URL_MAX)
    is_review = not latest and told.subject.type == PULL_REQUEST and number is not None
    return Happening(
        event=ExternalEvent(
            id=f"evt-github-{told.id}-{stamp(at)}",
            type=kind,
            source="github",
            repo=repo,
            payload={
                "reason": told.reason,
                "subject_title": clean(told.subject.title, TITLE_MAX),
                "subject_url": url,
                "subject_type": told.subject.type,
                "updated_at": at.isoformat(),
                "number": number,
            },
            priority=priority,
            created_at=now,
            status=EventStatus.PENDING,
        ),
        source=Source.POLL,
        place=f"{repo}#{number}" if number else f"{repo}:{told.id}",
        at=at,
        reason=told.reason,
        comment=found[1] if (found := _COMMENT.search(latest)) else "",
        look_at=latest if found else f"{url}/reviews" if is_review else "",
    )


def parse_webhook(event: str, document: Any, logins: Collection[str], now: datetime) -> Happening | Dropped:
    """Read what one webhook tells; `logins` are ours. One that makes no sense is refused as malformed."""
    action = document.get("action", "") if isinstance(document, dict) else ""
    if not _is_known(event, action):
        return Dropped("nothing that becomes an event")
    told = fitted(document, _Delivery)
    thing = told.pull_request or told.issue
    if thing is None:
        raise MalformedEvent("this is about no issue and no pull request")
    us = {login.lower() for login in logins}
    if (event, action) in _SAID:
        return _said(event, told, thing, us, now)
    if action in ("review_requested", "assigned"):
        asked = told.requested_reviewer if action == "review_requested" else told.assignee
        if asked is None or asked.login.lower() not in us:
            return Dropped("somebody else is asked")
        reason = "review_requested" if action == "review_requested" else "assign"
        return _happening(told, thing, reason, action, now)
    if action == "opened":
        if not _mentions(thing.body, us):
            return Dropped("nobody of us is mentioned")
        return _happening(told, thing, "mention", action, now, text=thing.body)
    return _happening(told, thing, "state_change", action, now, concerns_us=_is_part(thing, us))


def with_said(happening: Happening, said: Said | None, within: tuple[datetime, datetime]) -> Happening:
    """Return a happening that is known to be what was said, if that was at about the same time."""
    if said is None or not within[0] <= said.at <= within[1]:
        return msgspec.structs.replace(happening, comment="")
    actor = said.user.login if said.user else ""
    more = {"actor": clean(actor, NAME_MAX), "text": clean(said.body, TEXT_MAX)}
    more["html_url"] = clean(said.html_url, URL_MAX)
    event = msgspec.structs.replace(happening.event, payload={**happening.event.payload, **more})
    return msgspec.structs.replace(happening, event=event, actor=actor)


def _is_known(event: str, action: object) -> bool:
    if not isinstance(action, str):
        return False
    if event in _STATES and action in (*_STATES[event], "assigned", "opened"):
        return True
    return (event, action) in _SAID or (event, action) == ("pull_request", "review_requested")


def _said(event: str, told: _Delivery, thing: _Thing, us: set[str], now: datetime) -> Happening | Dropped:
    field, word = _SAID[event, told.action]
    said = told.review if field == "review" else told.comment
    if said is None:
        raise MalformedEvent(f"this carries no {field}")
    mentioned = _mentions(said.body, us)
    if word == "remark" and not mentioned:
        return Dropped("its review tells of it")
    where = {"comment": "issues/comments", "remark": "pulls/comments"}.get(word)
    return _happening(
        told,
        thing,
        "mention" if mentioned else "comment",
        f"{word}.{said.id}",
        now,
        at=said.at,
        text=said.body,
        html_url=said.html_url,
        comment=f"{where}/{said.id}" if where else "",
        concerns_us=mentioned or _is_part(thing, us),
    )


def _happening(
    told: _Delivery,
    thing: _Thing,
    reason: str,
    word: str,
    now: datetime,
    *,
    at: datetime | None = None,
    text: str | None = None,
    html_url: str | None = None,
    comment: str = "",
    concerns_us: bool = True,
) -> Happening:
    repo, at = repository(told.repository.full_name), at or moment(thing.updated_at)
    is_pull = told.pull_request is not None or thing.pull_request is not None
    subject = PULL_REQUEST if is_pull else ISSUE
    kind, priority = type_of(subject, reason)
    url = clean(thing.url, URL_MAX)
    payload = {
        "reason": reason,
        "subject_title": clean(thing.title, TITLE_MAX),
        "subject_url": re.sub(r"/issues/(?=[0-9]+$)", "/pulls/", url) if is_pull else url,
        "subject_type": subject,
        "updated_at": at.isoformat(),
        "number": thing.number,
        "action": told.action,
        "actor": clean(told.sender.login, NAME_MAX),
        "text": clean(text, TEXT_MAX),
        "html_url": clean(html_url or thing.html_url, URL_MAX),
        "base": clean(thing.base.ref, NAME_MAX) if thing.base else None,
    }
    return Happening(
        event=ExternalEvent(
            id=f"evt-github-hook-{told.repository.id}-{thing.number}-{word.replace('_', '-')}-{stamp(at)}",
            type=kind,
            source="github",
            repo=repo,
            payload=payload,
            priority=priority,
            created_at=now,
            status=EventStatus.PENDING,
        ),
        source=Source.HOOK,
        place=f"{repo}#{thing.number}",
        at=at,
        reason=reason,
        actor=told.sender.login,
        comment=comment,
        concerns_us=concerns_us,
    )


def _is_part(thing: _Thing, us: set[str]) -> bool:
    """Tell whether we opened it or are to do something about it."""
    people = [thing.user, *thing.assignees]
    named = [person.login for person in people if person]
    # A team that is asked for a review stands in the same list and has no login.
    named += [str(person.get("login", "")) for person in thing.requested_reviewers if isinstance(person, dict)]
    return any(login.lower() in us for login in named)


def _mentions(text: str | None, us: set[str]) -> bool:
    names = "|".join(re.escape(login) for login in sorted(us))
    return (
        bool(us) and re.search(rf"(?<![\w/`])@(?:{names})(?![\w-])", (text or "")[:TEXT_MAX], re.IGNORECASE) is not None
    )
