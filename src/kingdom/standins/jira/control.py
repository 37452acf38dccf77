"""What people do in Jira, for a test or a demo to have it done."""

import copy
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import msgspec
from aiohttp import web

from kingdom.standins.jira.document import document
from kingdom.standins.jira.interface import ACCOUNT, Refused, ticket_of
from kingdom.standins.jira.tickets import ISSUE_TYPES, STATUSES, change, comment, create, introduce
from kingdom.standins.server import BOOK, CONTROL

A_PERSON = "712020:a-person"

Asked = TypeVar("Asked")
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class User(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A person; everybody else who is named has the account as a name."""

    account_id: str
    display_name: str
    email_address: str = ""


class NewTicket(msgspec.Struct, forbid_unknown_fields=True):
    """A ticket that a person opens; an assignee of "me" is the account that the stand-in lets in."""

    project: str
    summary: str
    description: str = ""
    issuetype: str = "Task"
    status: str = "To Do"
    assignee: str | None = None
    labels: list[str] = []
    by: str = A_PERSON
    at: Moment | None = None


class TicketChange(msgspec.Struct, forbid_unknown_fields=True):
    """What a person changes in a ticket; what is not named stays."""

    summary: str | msgspec.UnsetType = msgspec.UNSET
    status: str | msgspec.UnsetType = msgspec.UNSET
    assignee: str | msgspec.UnsetType | None = msgspec.UNSET
    labels: list[str] | msgspec.UnsetType = msgspec.UNSET
    by: str = A_PERSON
    at: Moment | None = None


class NewComment(msgspec.Struct, forbid_unknown_fields=True):
    """What a person writes below a ticket."""

    body: str
    by: str = A_PERSON
    at: Moment | None = None


class Lag(msgspec.Struct, forbid_unknown_fields=True):
    """Whether the search stops to learn of changes, as Jira's does for a while."""

    lags: bool


def add_routes(application: web.Application) -> None:
    """Have people's doings in an application."""
    router = application.router
    router.add_post(f"{CONTROL}/users", _meet)
    router.add_post(f"{CONTROL}/search", _lag)
    router.add_post(f"{CONTROL}/tickets", _open)
    router.add_post(f"{CONTROL}/tickets/{{key}}", _change)
    router.add_post(f"{CONTROL}/tickets/{{key}}/comments", _comment)


async def _meet(request: web.Request) -> web.Response:
    user = await _asked(request, User)
    book = request.app[BOOK]
    with book.change():
        introduce(book, user.account_id, user.display_name, user.email_address)
    return web.json_response({"accountId": user.account_id}, status=201)


async def _lag(request: web.Request) -> web.Response:
    asked = await _asked(request, Lag)
    with request.app[BOOK].change() as state:
        state["indexed"] = copy.deepcopy(state["tickets"]) if asked.lags else None
    return web.json_response({"lags": asked.lags})


async def _open(request: web.Request) -> web.Response:
    asked = await _asked(request, NewTicket)
    book = request.app[BOOK]
    at, fields = _checked(request, asked)
    fields["description"] = document(asked.description) if asked.description else None
    with book.change():
        ticket = create(book, at, **fields)
    return web.json_response(ticket, status=201)


async def _change(request: web.Request) -> web.Response:
    at, fields = _checked(request, await _asked(request, TicketChange))
    book = request.app[BOOK]
    ticket = ticket_of(book, request.match_info["key"])
    with book.change():
        change(book, ticket, at, **fields)
    return web.json_response(ticket)


async def _comment(request: web.Request) -> web.Response:
    asked = await _asked(request, NewComment)
    book = request.app[BOOK]
    ticket = ticket_of(book, request.match_info["key"])
    with book.change():
        written = comment(book, ticket, asked.at or datetime.now(UTC), by=asked.by, body=asked.body)
    return web.json_response(written, status=201)


async def _asked(request: web.Request, kind: type[Asked]) -> Asked:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except msgspec.MsgspecError as wrong:
        raise Refused(400, f"The stand-in does not understand this: {wrong}.") from wrong


def _checked(request: web.Request, asked: NewTicket | TicketChange) -> tuple[datetime, dict[str, Any]]:
    """Return when something happens and the fields that are named, of which only Jira's own values are taken."""
    fields = {name: value for name, value in msgspec.structs.asdict(asked).items() if value is not msgspec.UNSET}
    for name, known in (("status", STATUSES), ("issuetype", ISSUE_TYPES)):
        if name in fields and fields[name] not in known:
            raise Refused(400, f"There is no {name} '{fields[name]}' here; there are {', '.join(known)}.")
    if fields.get("assignee") == "me":
        fields["assignee"] = request.app[ACCOUNT].id
    return fields.pop("at") or datetime.now(UTC), fields
