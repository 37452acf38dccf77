"""Parse Jira tickets, and detect what is new about them. Their content is untrusted. This module does no I/O."""

import re
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import msgspec

from kingdom.court.documents import EventStatus, ExternalEvent, Priority
from kingdom.court.sentinel.records import KnownTicket
from kingdom.court.sentinel.untrusted import NAME_MAX, TITLE_MAX, clean_text, convert_untrusted, parse_time, time_stamp
from kingdom.errors import MalformedEvent

ASSIGNED = "jira.ticket.assigned"
UPDATED = "jira.ticket.updated"
COMMENTED = "jira.ticket.commented"
_KEY = re.compile(r"[A-Z][A-Z0-9_]{0,79}-[1-9][0-9]{0,11}")
_COMMENTS_MAX = 20
# The limit in characters for one comment, so that all comments together fit into a prompt.
_COMMENT_TEXT_MAX = 4_000


class _Account(msgspec.Struct, rename="camel"):
    account_id: str = ""
    display_name: str = ""


class _Status(msgspec.Struct):
    name: str


class _TicketFields(msgspec.Struct):
    status: _Status
    updated: str
    summary: str | None = None
    assignee: _Account | None = None
    reporter: _Account | None = None


class _Item(msgspec.Struct):
    field: str
    to: str | None = None


class _History(msgspec.Struct):
    created: str
    items: list[_Item] = []
    author: _Account | None = None


class _Changelog(msgspec.Struct):
    histories: list[_History] = []
    total: int = 0


class _Issue(msgspec.Struct):
    key: str
    fields: _TicketFields
    changelog: _Changelog = msgspec.field(default_factory=_Changelog)


class TicketComment(msgspec.Struct):
    """A comment on a ticket."""

    id: str
    created: str
    body: Any = ""
    author: _Account | None = None


class FoundTicket(msgspec.Struct, frozen=True, kw_only=True):
    """A ticket that a search found."""

    key: str
    updated: datetime
    issue: _Issue

    def has_changed_since(self, known: KnownTicket | None) -> bool:
        """Return whether the ticket changed since it was last read."""
        return known is None or self.updated > known.known_until


def parse_issue(document: Any) -> FoundTicket:
    """Parse one ticket of a search, or raise MalformedEvent."""
    issue = convert_untrusted(document, _Issue)
    if not _KEY.fullmatch(issue.key):
        raise MalformedEvent("the key of a ticket must look like QP-123")
    return FoundTicket(key=issue.key, updated=parse_time(issue.fields.updated), issue=issue)


def parse_comments(documents: Any) -> list[TicketComment]:
    """Parse comments. Skip malformed comments."""
    comments = []
    for document in documents if isinstance(documents, list) else []:
        try:
            comment = convert_untrusted(document, TicketComment)
            parse_time(comment.created)
        except MalformedEvent:
            continue
        comments.append(comment)
    return comments


def detect_news(
    found: FoundTicket,
    known: KnownTicket | None,
    comments: Sequence[TicketComment],
    *,
    own_accounts: Collection[str],
    url: str,
    now: datetime,
) -> tuple[KnownTicket, ExternalEvent | None]:
    """Return what to store about a ticket, and an event if another person made a relevant change.

    One poll creates one event per ticket, of the first type that applies: assigned, updated, commented. The event
    always contains the new comments of other people, at most the newest 20.
    """
    since = known.known_until if known else None
    new_comments = [each for each in comments if since is not None and parse_time(each.created) > since]
    status = clean_text(found.issue.fields.status.name, TITLE_MAX)
    latest = max([found.updated, *(parse_time(each.created) for each in new_comments)])
    remembered = KnownTicket(key=found.key, status=status, known_until=latest)
    others = [each for each in new_comments if _id_of(each.author) not in own_accounts]
    kind = _event_type(found, known, others, own_accounts)
    if kind is None:
        return remembered, None
    event = ExternalEvent(
        id=f"evt-jira-{found.key.replace('_', '.')}-{time_stamp(found.updated)}",
        type=kind,
        source="jira",
        repo=None,
        payload={
            "key": found.key,
            "summary": clean_text(found.issue.fields.summary, TITLE_MAX),
            "status": status,
            "previous_status": known.status if known else None,
            "url": f"{url.rstrip('/')}/browse/{found.key}",
            "updated_at": found.updated.isoformat(),
            "comments": [_comment_payload(each) for each in others[-_COMMENTS_MAX:]],
        },
        priority=Priority.LOW if kind == COMMENTED else Priority.NORMAL,
        created_at=now,
        status=EventStatus.PENDING,
    )
    return remembered, event


def _event_type(
    found: FoundTicket, known: KnownTicket | None, new_comments: Sequence[TicketComment], own_accounts: Collection[str]
) -> str | None:
    histories = [each for each in found.issue.changelog.histories if _is_after(each, known)]
    others = [each for each in histories if _id_of(each.author) not in own_accounts]
    if known is None:
        reporter = _id_of(found.issue.fields.reporter)
        # A ticket that only our own accounts have changed needs no event.
        return ASSIGNED if others or reporter not in own_accounts or not reporter else None
    if _has_change(others, "assignee", _id_of(found.issue.fields.assignee)):
        return ASSIGNED
    is_listed = _has_change(histories, "status", None)
    is_moved = clean_text(found.issue.fields.status.name, TITLE_MAX) != known.status
    # The changelog may be truncated. A change of status that it does not list counts as made by another person.
    if _has_change(others, "status", None) or (is_moved and not is_listed):
        return UPDATED
    return COMMENTED if new_comments else None


def _has_change(histories: Sequence[_History], field: str, to: str | None) -> bool:
    """Return whether one of the histories changes a field to a value, or to any value if `to` is None."""
    items = [item for history in histories for item in history.items if item.field == field]
    return any(to is None or (item.to and item.to == to) for item in items)


def _is_after(history: _History, known: KnownTicket | None) -> bool:
    try:
        return known is None or parse_time(history.created) > known.known_until
    except MalformedEvent:
        return False


def _id_of(account: _Account | None) -> str:
    return account.account_id if account else ""


def _comment_payload(comment: TicketComment) -> dict[str, str]:
    author = comment.author or _Account()
    return {
        "id": clean_text(comment.id, NAME_MAX),
        "author": clean_text(author.display_name, NAME_MAX),
        "account_id": clean_text(author.account_id, NAME_MAX),
        "created_at": parse_time(comment.created).isoformat(),
        "text": clean_text(comment.body, _COMMENT_TEXT_MAX) if isinstance(comment.body, str) else "",
    }
