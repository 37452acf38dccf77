"""The tickets that the stand-in keeps, and all that can happen to them."""

from datetime import UTC, datetime
from typing import Any

from kingdom.standins.book import Book
from kingdom.standins.jira.document import document

CATEGORIES: dict[str, dict[str, Any]] = {
    "new": {"id": 2, "key": "new", "colorName": "blue-gray", "name": "To Do"},
    "indeterminate": {"id": 4, "key": "indeterminate", "colorName": "yellow", "name": "In Progress"},
    "done": {"id": 3, "key": "done", "colorName": "green", "name": "Done"},
}
STATUSES = {
    "To Do": {"id": "10000", "category": "new"},
    "In Progress": {"id": "3", "category": "indeterminate"},
    "In Review": {"id": "10001", "category": "indeterminate"},
    "Done": {"id": "10002", "category": "done"},
}
# As in Jira's own simple workflow, every status can be reached from every other.
TRANSITIONS = {"11": "To Do", "21": "In Progress", "31": "In Review", "41": "Done"}
ISSUE_TYPES = {"Epic": "10000", "Task": "10001", "Bug": "10002", "Story": "10003"}


def printed(moment: datetime) -> str:
    """Return a moment as Jira prints it; in UTC throughout, so that their order is that of their texts."""
    moment = moment.astimezone(UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}+0000"


def nothing() -> dict[str, Any]:
    """Return the state of a Jira without tickets; `indexed` is what a search that lags behind still believes."""
    return {"projects": {}, "users": {}, "tickets": {}, "indexed": None}


def introduce(book: Book, account: str, name: str = "", email: str = "") -> str:
    """Have an account; one that is only mentioned is named after itself."""
    if name or account not in book.state["users"]:
        book.state["users"][account] = {"displayName": name or account, "emailAddress": email}
    return account


def create(book: Book, at: datetime, *, project: str, by: str, **fields: Any) -> dict[str, Any]:
    """Put a new ticket into a project, which begins with its first ticket."""
    projects = book.state["projects"]
    if project not in projects:
        projects[project] = str(10000 + book.next_number("project"))
    ticket: dict[str, Any] = {
        "id": str(10000 + book.next_number("ticket")),
        "key": f"{project}-{book.next_number(f'ticket of {project}')}",
        "project": project,
        "reporter": introduce(book, by),
        "created": printed(at),
        "updated": printed(at),
        "comments": [],
        "histories": [],
        **fields,
    }
    if ticket["assignee"]:
        introduce(book, ticket["assignee"])
    book.state["tickets"][ticket["key"]] = ticket
    return ticket


def change(book: Book, ticket: dict[str, Any], at: datetime, *, by: str, **fields: Any) -> None:
    """Set fields of a ticket, and write into its history what became different."""
    if fields.get("assignee"):
        introduce(book, fields["assignee"])
    items = [_history_item(book, name, ticket[name], new) for name, new in fields.items() if ticket[name] != new]
    ticket.update(fields, updated=printed(at))
    if items:
        history = {
            "id": str(10000 + book.next_number("history")),
            "author": introduce(book, by),
            "created": printed(at),
        }
        ticket["histories"].append({**history, "items": items})


def comment(book: Book, ticket: dict[str, Any], at: datetime, *, by: str, body: str | dict[str, Any]) -> dict[str, Any]:
    """Write a comment below a ticket; a plain text becomes a document."""
    written = {
        "id": str(10000 + book.next_number("comment")),
        "author": introduce(book, by),
        "body": document(body) if isinstance(body, str) else body,
        "created": printed(at),
        "updated": printed(at),
    }
    ticket["comments"].append(written)
    ticket["updated"] = printed(at)
    return written


def _history_item(book: Book, field: str, old: Any, new: Any) -> dict[str, Any]:
    return {
        "field": field,
        "fieldtype": "jira",
        "fieldId": field,
        "from": _identifier(field, old),
        "fromString": _readable(book, field, old),
        "to": _identifier(field, new),
        "toString": _readable(book, field, new),
    }


def _identifier(field: str, value: Any) -> str | None:
    if field == "status":
        return STATUSES[value]["id"]
    return value if field == "assignee" else None


def _readable(book: Book, field: str, value: Any) -> str | None:
    if field == "assignee" and value:
        return str(book.state["users"][value]["displayName"])
    return " ".join(value) if isinstance(value, list) else value
