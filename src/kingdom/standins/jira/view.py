"""The JSON documents of the REST API, in version 2 and 3."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kingdom.standins.jira.atlassian_document import to_text
from kingdom.standins.jira.tickets import CATEGORIES, ISSUE_TYPES, STATUSES, TRANSITIONS
from kingdom.standins.state_file import StateFile

# Name and type of every field.
FIELDS = {
    "summary": ("Summary", "string"),
    "description": ("Description", "string"),
    "project": ("Project", "project"),
    "issuetype": ("Issue Type", "issuetype"),
    "status": ("Status", "status"),
    "assignee": ("Assignee", "user"),
    "reporter": ("Reporter", "user"),
    "labels": ("Labels", "array"),
    "created": ("Created", "datetime"),
    "updated": ("Updated", "datetime"),
    "comment": ("Comment", "comments-page"),
}
NAVIGABLE = frozenset(FIELDS) - {"comment"}


@dataclass(frozen=True, slots=True)
class JiraView:
    """One version of the REST API, for a client that uses the address `origin`."""

    state_file: StateFile
    origin: str
    version: str

    def issue(self, ticket: dict[str, Any], fields: Sequence[str], expand: Sequence[str] = ()) -> dict[str, Any]:
        """Return a ticket with the requested fields. If only the id is requested, return only the id."""
        if set(fields) <= {"id"}:
            return {"id": ticket["id"]}
        shown: dict[str, Any] = {
            "expand": "renderedFields,names,schema,operations,editmeta,changelog,versionedRepresentations",
            "id": ticket["id"],
            "self": self._link("issue", ticket["id"]),
            "key": ticket["key"],
        }
        if chosen := _select_fields(fields):
            shown["fields"] = {name: self._field(ticket, name) for name in FIELDS if name in chosen}
        if "changelog" in expand:
            shown["changelog"] = self._changelog(ticket)
        if "transitions" in expand:
            shown["transitions"] = self.transitions()
        return shown

    def comment(self, ticket: dict[str, Any], comment: dict[str, Any]) -> dict[str, Any]:
        """Return a comment."""
        author = self.user(comment["author"])
        return {
            "self": self._link("issue", ticket["id"], "comment", comment["id"]),
            "id": comment["id"],
            "author": author,
            "body": self._text(comment["body"]),
            "updateAuthor": author,
            "created": comment["created"],
            "updated": comment["updated"],
            "jsdPublic": True,
        }

    def comments(self, ticket: dict[str, Any], start: int, limit: int, *, newest_first: bool = False) -> dict[str, Any]:
        """Return one page of the comments of a ticket."""
        written = ticket["comments"][::-1] if newest_first else ticket["comments"]
        return {
            "startAt": start,
            "maxResults": limit,
            "total": len(written),
            "comments": [self.comment(ticket, each) for each in written[start : start + limit]],
        }

    def transitions(self) -> list[dict[str, Any]]:
        """Return all transitions, which are always available."""
        flags = {"hasScreen": False, "isGlobal": True, "isInitial": False, "isAvailable": True, "isConditional": False}
        return [{"id": id_, "name": to, "to": self.status(to), **flags} for id_, to in TRANSITIONS.items()]

    def status(self, name: str) -> dict[str, Any]:
        """Return a status."""
        category = CATEGORIES[STATUSES[name]["category"]]
        number = STATUSES[name]["id"]
        category_link = self._link("statuscategory", str(category["id"]))
        return {
            "self": self._link("status", number),
            "description": "",
            "name": name,
            "id": number,
            "statusCategory": {"self": category_link, **category},
        }

    def user(self, account: str) -> dict[str, Any]:
        """Return a user."""
        known = self.state_file.state["users"][account]
        return {
            "self": f"{self._link('user')}?accountId={account}",
            "accountId": account,
            "accountType": "atlassian",
            "emailAddress": known["emailAddress"],
            "displayName": known["displayName"],
            "active": True,
            "timeZone": "UTC",
        }

    def fields(self) -> list[dict[str, Any]]:
        """Return the description of all fields."""
        return [
            {
                "id": id_,
                "key": id_,
                "name": name,
                "custom": False,
                "orderable": True,
                "navigable": id_ in NAVIGABLE,
                "searchable": True,
                "clauseNames": [id_],
                "schema": {"type": kind, "system": id_},
            }
            for id_, (name, kind) in FIELDS.items()
        ]

    def _field(self, ticket: dict[str, Any], name: str) -> Any:
        if name == "project":
            key = ticket["project"]
            number = self.state_file.state["projects"][key]
            return {"self": self._link("project", number), "id": number, "key": key, "name": key}
        if name == "issuetype":
            number = ISSUE_TYPES[ticket["issuetype"]]
            link = self._link("issuetype", number)
            return {"self": link, "id": number, "name": ticket["issuetype"], "subtask": False}
        if name == "status":
            return self.status(ticket["status"])
        if name in ("assignee", "reporter"):
            return self.user(ticket[name]) if ticket[name] else None
        if name == "description":
            return self._text(ticket["description"]) if ticket["description"] else None
        if name == "comment":
            return self.comments(ticket, 0, len(ticket["comments"]))
        return ticket[name]

    def _changelog(self, ticket: dict[str, Any]) -> dict[str, Any]:
        histories = [{**history, "author": self.user(history["author"])} for history in reversed(ticket["histories"])]
        return {"startAt": 0, "maxResults": len(histories), "total": len(histories), "histories": histories}

    def _text(self, body: dict[str, Any]) -> str | dict[str, Any]:
        return body if self.version == "3" else to_text(body)

    def _link(self, *parts: str) -> str:
        return "/".join((self.origin, "rest/api", self.version, *parts))


def _select_fields(fields: Sequence[str]) -> set[str]:
    left_out = {name[1:] for name in fields if name.startswith("-")}
    chosen = {name for name in fields if name in FIELDS}
    if "*all" in fields or all(name.startswith("-") for name in fields):
        chosen |= set(FIELDS)
    if "*navigable" in fields:
        chosen |= NAVIGABLE
    return chosen - left_out
