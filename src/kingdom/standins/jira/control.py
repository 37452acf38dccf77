"""The control interface of the Jira stand-in: actions of people, for tests and the demo."""

import copy
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import msgspec
from aiohttp import web

from kingdom.standins.jira.atlassian_document import to_document
from kingdom.standins.jira.rest_api import ACCOUNT, JiraRefusal, find_ticket
from kingdom.standins.jira.tickets import ISSUE_TYPES, STATUSES, add_comment, change_ticket, create_ticket, ensure_user
from kingdom.standins.server import CONTROL, STATE_FILE

DEFAULT_PERSON = "712020:a-person"

Asked = TypeVar("Asked")
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class JiraUser(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A user with a display name. All other users show their account id as their name."""

    account_id: str
    display_name: str
    email_address: str = ""


class NewTicket(msgspec.Struct, forbid_unknown_fields=True):
    """A ticket that a person opens. The assignee "me" is the account of the client."""

    project: str
    summary: str
    description: str = ""
    issuetype: str = "Task"
    status: str = "To Do"
    assignee: str | None = None
    labels: list[str] = []
    by: str = DEFAULT_PERSON
    at: Moment | None = None


class TicketChange(msgspec.Struct, forbid_unknown_fields=True):
    """Changed fields of a ticket. Omitted fields stay unchanged."""

    summary: str | msgspec.UnsetType = msgspec.UNSET
    status: str | msgspec.UnsetType = msgspec.UNSET
    assignee: str | msgspec.UnsetType | None = msgspec.UNSET
    labels: list[str] | msgspec.UnsetType = msgspec.UNSET
    by: str = DEFAULT_PERSON
    at: Moment | None = None


class NewTicketComment(msgspec.Struct, forbid_unknown_fields=True):
    """A comment of a person on a ticket."""

    body: str
    by: str = DEFAULT_PERSON
    at: Moment | None = None


class SearchLag(msgspec.Struct, forbid_unknown_fields=True):
    """With `lags`, the search index is no longer updated, as sometimes happens in Jira."""

    lags: bool


def add_routes(application: web.Application) -> None:
    """Add the control interface to an application."""
    router = application.router
    router.add_post(f"{CONTROL}/users", _add_user)
    router.add_post(f"{CONTROL}/search", _set_search_lag)
    router.add_post(f"{CONTROL}/tickets", _open_ticket)
    router.add_post(f"{CONTROL}/tickets/{{key}}", _change_ticket)
    router.add_post(f"{CONTROL}/tickets/{{key}}/comments", _add_comment)


async def _add_user(request: web.Request) -> web.Response:
    user = await _decode(request, JiraUser)
    state_file = request.app[STATE_FILE]
    with state_file.change():
        ensure_user(state_file, user.account_id, user.display_name, user.email_address)
    return web.json_response({"accountId": user.account_id}, status=201)


async def _set_search_lag(request: web.Request) -> web.Response:
    asked = await _decode(request, SearchLag)
    with request.app[STATE_FILE].change() as state:
        state["indexed"] = copy.deepcopy(state["tickets"]) if asked.lags else None
    return web.json_response({"lags": asked.lags})


async def _open_ticket(request: web.Request) -> web.Response:
    asked = await _decode(request, NewTicket)
    state_file = request.app[STATE_FILE]
    at, fields = _check_fields(request, asked)
    fields["description"] = to_document(asked.description) if asked.description else None
    with state_file.change():
        ticket = create_ticket(state_file, at, **fields)
    return web.json_response(ticket, status=201)


async def _change_ticket(request: web.Request) -> web.Response:
    at, fields = _check_fields(request, await _decode(request, TicketChange))
    state_file = request.app[STATE_FILE]
    ticket = find_ticket(state_file, request.match_info["key"])
    with state_file.change():
        change_ticket(state_file, ticket, at, **fields)
    return web.json_response(ticket)


async def _add_comment(request: web.Request) -> web.Response:
    asked = await _decode(request, NewTicketComment)
    state_file = request.app[STATE_FILE]
    ticket = find_ticket(state_file, request.match_info["key"])
    with state_file.change():
        written = add_comment(state_file, ticket, asked.at or datetime.now(UTC), by=asked.by, body=asked.body)
    return web.json_response(written, status=201)


async def _decode(request: web.Request, kind: type[Asked]) -> Asked:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except msgspec.MsgspecError as wrong:
        raise JiraRefusal(400, f"The stand-in cannot decode the request: {wrong}.") from wrong


def _check_fields(request: web.Request, asked: NewTicket | TicketChange) -> tuple[datetime, dict[str, Any]]:
    """Return the time and the given fields. Refuse unknown statuses and issue types."""
    fields = {name: value for name, value in msgspec.structs.asdict(asked).items() if value is not msgspec.UNSET}
    for name, known in (("status", STATUSES), ("issuetype", ISSUE_TYPES)):
        if name in fields and fields[name] not in known:
            raise JiraRefusal(400, f"There is no {name} '{fields[name]}' here; there are {', '.join(known)}.")
    if fields.get("assignee") == "me":
        fields["assignee"] = request.app[ACCOUNT].id
    return fields.pop("at") or datetime.now(UTC), fields
