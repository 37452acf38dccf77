"""The tickets of the stand-in: create, change and comment."""

from datetime import UTC, datetime
from typing import Any

from kingdom.standins.jira.atlassian_document import to_document
from kingdom.standins.state_file import StateFile

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
# As in Jira's simple workflow, each status can be reached from every other status.
TRANSITIONS = {"11": "To Do", "21": "In Progress", "31": "In Review", "41": "Done"}
ISSUE_TYPES = {"Epic": "10000", "Task": "10001", "Bug": "10002", "Story": "10003"}


def format_time(moment: datetime) -> str:
    """Format a time as Jira does, always in UTC, so that the strings sort by time."""
    moment = moment.astimezone(UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}+0000"


def empty_state() -> dict[str, Any]:
    """Return the state of a Jira without tickets. `indexed` has the tickets that a lagging search knows."""
    return {"projects": {}, "users": {}, "tickets": {}, "indexed": None}


def ensure_user(state_file: StateFile, account: str, name: str = "", email: str = "") -> str:
    """Add a user unless it exists. The default name is the account id. A given name replaces the old one."""
    if name or account not in state_file.state["users"]:
        state_file.state["users"][account] = {"displayName": name or account, "emailAddress": email}
    return account


def create_ticket(state_file: StateFile, at: datetime, *, project: str, by: str, **fields: Any) -> dict[str, Any]:
    """Create a ticket, and its project if needed."""
    projects = state_file.state["projects"]
    if project not in projects:
        projects[project] = str(10000 + state_file.next_number("project"))
    ticket: dict[str, Any] = {
        "id": str(10000 + state_file.next_number("ticket")),
        "key": f"{project}-{state_file.next_number(f'ticket of {project}')}",
        "project": project,
        "reporter": ensure_user(state_file, by),
        "created": format_time(at),
        "updated": format_time(at),
        "comments": [],
        "histories": [],
        **fields,
    }
    if ticket["assignee"]:
        ensure_user(state_file, ticket["assignee"])
    state_file.state["tickets"][ticket["key"]] = ticket
    return ticket


def change_ticket(state_file: StateFile, ticket: dict[str, Any], at: datetime, *, by: str, **fields: Any) -> None:
    """Set fields of a ticket and add the changes to its history."""
    if fields.get("assignee"):
        ensure_user(state_file, fields["assignee"])
    items = [_history_item(state_file, name, ticket[name], new) for name, new in fields.items() if ticket[name] != new]
    ticket.update(fields, updated=format_time(at))
    if items:
        history = {
            "id": str(10000 + state_file.next_number("history")),
            "author": ensure_user(state_file, by),
            "created": format_time(at),
        }
        ticket["histories"].append({**history, "items": items})


def add_comment(
    state_file: StateFile, ticket: dict[str, Any], at: datetime, *, by: str, body: str | dict[str, Any]
) -> dict[str, Any]:
    """Add a comment to a ticket. Plain text becomes a document."""
    written = {
        "id": str(10000 + state_file.next_number("comment")),
        "author": ensure_user(state_file, by),
        "body": to_document(body) if isinstance(body, str) else body,
        "created": format_time(at),
        "updated": format_time(at),
    }
    ticket["comments"].append(written)
    ticket["updated"] = format_time(at)
    return written


def _history_item(state_file: StateFile, field: str, old: Any, new: Any) -> dict[str, Any]:
    return {
        "field": field,
        "fieldtype": "jira",
        "fieldId": field,
        "from": _identifier(field, old),
        "fromString": _readable(state_file, field, old),
        "to": _identifier(field, new),
        "toString": _readable(state_file, field, new),
    }


def _identifier(field: str, value: Any) -> str | None:
    if field == "status":
        return STATUSES[value]["id"]
    return value if field == "assignee" else None


def _readable(state_file: StateFile, field: str, value: Any) -> str | None:
    if field == "assignee" and value:
        return str(state_file.state["users"][value]["displayName"])
    return " ".join(value) if isinstance(value, list) else value
