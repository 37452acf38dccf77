"""Perform petitions in Jira: comments and transitions."""

from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from kingdom.bus.effects.effect import Absent, Acked, Attempt, CallResult, Present, ReconcileResult, Rejected, Unclear
from kingdom.court.petitions.bodies import JiraComment, JiraTransition, stored_body
from kingdom.court.petitions.effects import (
    CLOCK_DIFFERENCE_MAX,
    LONGEST_SEND,
    VISIBLE_AFTER,
    PetitionEffect,
    earliest_time,
    without_forbidden_commands,
)
from kingdom.court.petitions.http_api import LONGEST_CALL, REASON_MAX, HttpApi, call_result, require_body
from kingdom.court.remote_http import HttpReply, jira_headers
from kingdom.court.sentinel.untrusted import clean_text
from kingdom.errors import Transient

_NAME = "Jira"
_PAGE = 100
_PAGES_MAX = 100
_GREY = "#97a0af"


class JiraApi(HttpApi):
    """Jira's REST API for the account of an email and a token."""

    def __init__(self, url: str, email: str, token: str, longest_call: timedelta = LONGEST_CALL) -> None:
        super().__init__(url, jira_headers(email, token), longest_call)

    async def comments(self, key: str, since: datetime) -> AsyncIterator[dict[str, Any]]:
        """Yield the comments on a ticket since a time, the newest first."""
        path, start = f"/rest/api/3/issue/{key}/comment", 0
        for _ in range(_PAGES_MAX):
            reply = await self.ask(path, orderBy="-created", startAt=start, maxResults=_PAGE)
            found = require_body(reply, dict, _NAME)["comments"]
            for comment in found:
                if datetime.fromisoformat(comment["created"]) < since:
                    return
                yield comment
            if not found:
                return
            start += len(found)
        raise Transient(f"{key} has too many comments in {_NAME} to search")


class JiraPetitions(PetitionEffect):
    """Performs petitions in Jira. The mark of a petition is a small text below its comment."""

    def __init__(
        self, api: JiraApi, visible_after: timedelta = VISIBLE_AFTER, longest_send: timedelta = LONGEST_SEND
    ) -> None:
        super().__init__(_NAME, api, visible_after, longest_send)
        self._jira = api

    async def send(self, attempt: Attempt) -> CallResult:
        """Write the comment or change the status of the ticket."""
        document = attempt.request["body"]
        match attempt.request["kind"]:
            case "jira.comment":
                comment = stored_body(JiraComment, document)
                request_body = {"body": _document(without_forbidden_commands(comment.body, attempt), _mark(attempt))}
                reply = await self._api.send(f"/rest/api/3/issue/{comment.key}/comment", request_body)
                return call_result(reply, _NAME, _error_message(reply), self._comment_response(comment.key, reply.body))
            case "jira.transition":
                return await self._change_status(stored_body(JiraTransition, document))
            case kind:
                return Rejected(f"this version cannot perform {kind}")

    async def reconcile(self, attempt: Attempt) -> ReconcileResult:
        """Search for the result of this attempt or an earlier one."""
        document = attempt.request["body"]
        match attempt.request["kind"]:
            case "jira.comment":
                wanted = stored_body(JiraComment, document)
                async for comment in self._jira.comments(wanted.key, earliest_time(attempt)):
                    if _mark(attempt) in _texts(comment.get("body")):
                        return Present(self._comment_response(wanted.key, comment))
                return Absent()
            case "jira.transition":
                step = stored_body(JiraTransition, document)
                reply = await self._api.ask(f"/rest/api/3/issue/{step.key}", fields="status", expand="changelog")
                ticket = require_body(reply, dict, _NAME)
                if _is_same_name(ticket["fields"]["status"]["name"], step.to):
                    return Present(self._ticket_response(step))
                ours = require_body(await self._api.ask("/rest/api/3/myself"), dict, _NAME)["accountId"]
                was_reached = _was_set(ticket, step.to, earliest_time(attempt), ours)
                return Present(self._ticket_response(step)) if was_reached else Absent()
            case kind:
                return Unclear(f"this version cannot search for {kind}")

    async def _change_status(self, wanted: JiraTransition) -> CallResult:
        """Make the transition to a status, unless the ticket already has it."""
        path = f"/rest/api/3/issue/{wanted.key}"
        reply = await self._api.ask(path, fields="status")
        if not reply.ok:
            return call_result(reply, _NAME, _error_message(reply), {})
        if _is_same_name(require_body(reply, dict, _NAME)["fields"]["status"]["name"], wanted.to):
            return Acked({**self._ticket_response(wanted), "unchanged": True})
        reply = await self._api.ask(f"{path}/transitions")
        if not reply.ok:
            return call_result(reply, _NAME, _error_message(reply), {})
        steps = require_body(reply, dict, _NAME)["transitions"]
        fitting = [step for step in steps if _is_same_name(step["to"]["name"], wanted.to)]
        if not fitting:
            names = ", ".join(sorted({step["to"]["name"] for step in steps})) or "none"
            return Rejected(
                f"{wanted.key} has no transition to {wanted.to!r} from its current status; available: {names}"
            )
        reply = await self._api.send(f"{path}/transitions", {"transition": {"id": fitting[0]["id"]}})
        return call_result(reply, _NAME, _error_message(reply), self._ticket_response(wanted))

    def _ticket_response(self, wanted: JiraTransition) -> dict[str, Any]:
        return {"url": f"{self._api.url}/browse/{wanted.key}", "to": wanted.to}

    def _comment_response(self, key: str, comment: Any) -> dict[str, Any]:
        if not isinstance(comment, dict) or "id" not in comment:
            return {}
        return {"url": f"{self._api.url}/browse/{key}?focusedCommentId={comment['id']}", "id": comment["id"]}


def _mark(attempt: Attempt) -> str:
    return f"kingdom {attempt.request['mark']}"


def _document(text: str, mark: str) -> dict[str, Any]:
    """Return a text in Jira's document format: one paragraph per line, and the mark in small grey letters."""
    paragraphs: list[dict[str, Any]] = [
        {"type": "paragraph", "content": [{"type": "text", "text": line}]} if line else {"type": "paragraph"}
        for line in text.rstrip().splitlines()
    ]
    style = [{"type": "subsup", "attrs": {"type": "sub"}}, {"type": "textColor", "attrs": {"color": _GREY}}]
    small = {"type": "text", "text": mark, "marks": style}
    return {"type": "doc", "version": 1, "content": [*paragraphs, {"type": "paragraph", "content": [small]}]}


def _texts(node: Any) -> Iterator[str]:
    """Yield every text of a document."""
    if isinstance(node, dict):
        if isinstance(node.get("text"), str):
            yield node["text"]
        for child in node.get("content", ()):
            yield from _texts(child)


def _was_set(ticket: Mapping[str, Any], status: str, since: datetime, ours: str) -> bool:
    """Return whether the ticket got a status after the petition was made. `ours` is the id of our account."""
    for history in ticket.get("changelog", {}).get("histories", ()):
        is_ours = (history.get("author") or {}).get("accountId") == ours
        # `since` is earlier than the petition, because Jira's clock may be slow. Only our own account gets this margin.
        if datetime.fromisoformat(history["created"]) < (since if is_ours else since + CLOCK_DIFFERENCE_MAX):
            continue
        if any(item["field"] == "status" and _is_same_name(item["toString"], status) for item in history["items"]):
            return True
    return False


def _is_same_name(name: Any, wanted: str) -> bool:
    return str(name).strip().casefold() == wanted.strip().casefold()


def _error_message(reply: HttpReply) -> str:
    """Return the error messages of Jira."""
    if not isinstance(reply.body, dict):
        return ""
    messages, errors = reply.body.get("errorMessages") or (), reply.body.get("errors") or {}
    of_fields = [f"{field}: {text}" for field, text in errors.items()] if isinstance(errors, dict) else []
    return clean_text("; ".join([*map(str, messages), *of_fields]) or str(reply.body.get("message", "")), REASON_MAX)
