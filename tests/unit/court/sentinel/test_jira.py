"""What is new about a ticket: assigned, moved or commented by another person."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from kingdom.court.documents import ExternalEvent, Priority
from kingdom.court.sentinel.jira import detect_news, parse_comments, parse_issue
from kingdom.court.sentinel.records import KnownTicket
from kingdom.errors import MalformedEvent

NOW = datetime(2026, 2, 7, 12, 0, tzinfo=UTC)
US = "712020:us"
PERSON = "712020:person"
KNOWN = KnownTicket(key="QP-123", status="To Do", known_until=datetime(2026, 2, 7, 9, 0, tzinfo=UTC))


def account(account_id: str) -> dict[str, Any]:
    return {"accountId": account_id, "displayName": account_id.upper()}


def issue(*histories: dict[str, Any], status: str = "To Do", **more: Any) -> dict[str, Any]:
    fields = {
        "summary": "Fix it",
        "status": {"name": status},
        "updated": "2026-02-07T10:00:00.123+0000",
        "assignee": account(US),
        "reporter": account(PERSON),
        **more,
    }
    return {"key": "QP-123", "fields": fields, "changelog": {"histories": list(histories), "total": len(histories)}}


def change(field: str, by: str, to: str = "x", created: str = "2026-02-07T10:00:00.123+0000") -> dict[str, Any]:
    return {"created": created, "author": account(by), "items": [{"field": field, "to": to}]}


def comment(by: str, body: Any = "hello", created: str = "2026-02-07T10:00:00.100+0000") -> dict[str, Any]:
    return {"id": "10001", "author": account(by), "body": body, "created": created}


def news(document: Any, known: KnownTicket | None, *comments: Any) -> tuple[KnownTicket, ExternalEvent | None]:
    return detect_news(
        parse_issue(document),
        known,
        parse_comments(list(comments)),
        own_accounts=(US,),
        url="https://acme.atlassian.net/",
        now=NOW,
    )


def test_a_ticket_that_was_not_known_was_assigned() -> None:
    ticket, event = news(issue(), None)
    assert event is not None
    assert (event.type, event.priority, event.repo) == ("jira.ticket.assigned", Priority.NORMAL, None)
    assert event.id == "evt-jira-QP-123-20260207100000"
    assert event.payload == {
        "key": "QP-123",
        "summary": "Fix it",
        "status": "To Do",
        "previous_status": None,
        "url": "https://acme.atlassian.net/browse/QP-123",
        "updated_at": "2026-02-07T10:00:00.123000+00:00",
        "comments": [],
    }
    assert ticket == KnownTicket(key="QP-123", status="To Do", known_until=datetime(2026, 2, 7, 10, 0, 0, 123000, UTC))
    assert ExternalEvent.read(msgspec.to_builtins(event)) == event


def test_a_new_status_of_a_known_ticket_is_an_update_with_the_previous_status() -> None:
    _, event = news(issue(change("status", PERSON), status="In Review"), KNOWN)
    assert event is not None
    assert (event.type, event.payload["previous_status"]) == ("jira.ticket.updated", "To Do")


def test_a_new_status_that_is_missing_in_a_shortened_history_is_an_update_too() -> None:
    _, event = news(issue(status="In Review"), KNOWN)
    assert event is not None
    assert event.type == "jira.ticket.updated"


def test_a_new_comment_on_a_known_ticket_is_an_event_of_low_priority() -> None:
    _, event = news(issue(), KNOWN, comment(PERSON), comment(PERSON, "old", "2026-02-07T08:00:00.000+0000"))
    assert event is not None
    assert (event.type, event.priority) == ("jira.ticket.commented", Priority.LOW)
    assert [comments["text"] for comments in event.payload["comments"]] == ["hello"]


def test_a_new_status_and_a_comment_together_are_one_update_with_the_comment() -> None:
    _, event = news(issue(change("status", PERSON), status="Done"), KNOWN, comment(PERSON))
    assert event is not None
    assert event.type == "jira.ticket.updated"
    assert len(event.payload["comments"]) == 1


def test_a_ticket_that_is_assigned_to_us_again_is_assigned_again() -> None:
    _, event = news(issue(change("assignee", PERSON, to=US)), KNOWN)
    assert event is not None
    assert event.type == "jira.ticket.assigned"


@pytest.mark.parametrize(
    ("document", "comments"),
    [
        (issue(change("status", US), status="Done"), ()),
        (issue(), (comment(US),)),
        (issue(change("assignee", US, to=US)), ()),
        (issue(change("labels", PERSON)), ()),
    ],
)
def test_own_and_irrelevant_activity_is_remembered_without_an_event(document: Any, comments: tuple[Any, ...]) -> None:
    ticket, event = news(document, KNOWN, *comments)
    assert event is None
    assert ticket.known_until > KNOWN.known_until
    assert not parse_issue(document).has_changed_since(ticket)


def test_a_ticket_that_only_we_changed_is_our_own() -> None:
    assert news(issue(reporter=account(US)), None)[1] is None
    assert news(issue(change("assignee", PERSON, to=US), reporter=account(US)), None)[1] is not None


@pytest.mark.parametrize(
    "broken",
    [
        {"key": "../../x"},
        {"key": "qp-1"},
        {"key": "QP-" + "1" * 100},
        {"key": None},
        {"fields": None},
        {"fields": {"status": "Done", "updated": "2026-02-07T10:00:00.000+0000"}},
        {"fields": {"status": {"name": "Done"}, "updated": "never"}},
    ],
)
def test_an_invalid_ticket_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(MalformedEvent):
        parse_issue(issue() | broken)


def test_texts_of_strangers_are_bounded_and_storable() -> None:
    document = issue(summary="\x00\ud800" + "x" * 100_000)
    _, event = news(document, KNOWN, comment(PERSON, "y" * 100_000), comment(PERSON, {"type": "doc"}), {"id": 5})
    assert event is not None
    assert len(event.payload["summary"]) == 500
    assert [len(comments["text"]) for comments in event.payload["comments"]] == [4_000, 0]
    assert msgspec.json.encode(event)
