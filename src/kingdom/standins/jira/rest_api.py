"""The REST API of Jira."""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from kingdom.standins.jira.atlassian_document import is_document, to_text
from kingdom.standins.jira.jql import JqlError
from kingdom.standins.jira.search import SearchRequest, find_page
from kingdom.standins.jira.tickets import TRANSITIONS, add_comment, change_ticket
from kingdom.standins.jira.view import JiraView
from kingdom.standins.server import CONTROL, STATE_FILE
from kingdom.standins.state_file import StateFile

API = "/rest/api/{version:2|3|latest}"
ISSUE = f"{API}/issue/{{issue}}"
# A page has up to 5000 tickets if only id and key are requested, else up to 100.
PAGE_OF_IDS = 5000
PAGE = 100
REMOVED = (
    "The requested API has been removed. Please migrate to the /rest/api/3/search/jql API. A full migration guideline "
    "is available at https://developer.atlassian.com/changelog/#CHANGE-2046"
)


@dataclass(frozen=True, slots=True)
class JiraAccount:
    """The account of the client."""

    id: str
    email: str
    token: str

    def authorizes(self, authorization: str) -> bool:
        """Return whether a request is authorized: by email and token, or by the token as bearer."""
        scheme, _, secret = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return secret == self.token
        try:
            return scheme.lower() == "basic" and base64.b64decode(secret).decode() == f"{self.email}:{self.token}"
        except (binascii.Error, UnicodeDecodeError):
            return False


ACCOUNT = web.AppKey("account", JiraAccount)
Body = TypeVar("Body")


class TransitionId(msgspec.Struct):
    """A transition of the Jira workflow."""

    id: str | int = ""


class TransitionRequest(msgspec.Struct):
    """A request to move a ticket to another status."""

    transition: TransitionId | None = None
    fields: dict[str, Any] = {}


class AssigneeRequest(msgspec.Struct, rename="camel"):
    """A request to assign a ticket, or to unassign it."""

    account_id: str | int | msgspec.UnsetType | None = msgspec.UNSET


class JiraRefusal(Exception):
    """Raised when Jira refuses a request."""

    def __init__(self, status: int, /, *messages: str, **errors: str) -> None:
        super().__init__(status, messages, errors)
        self.status = status
        self.body = {"errorMessages": list(messages), "errors": errors}


def add_routes(application: web.Application) -> None:
    """Add the REST API to an application."""
    application.middlewares.append(_answer_like_jira)
    router = application.router
    router.add_get(f"{API}/serverInfo", _server_info)
    router.add_get(f"{API}/myself", _myself)
    router.add_get(f"{API}/field", _fields)
    router.add_get(f"{API}/user/search", _search_users)
    router.add_route("*", f"{API}/search", _removed)
    router.add_get(f"{API}/search/jql", _search_by_link)
    router.add_post(f"{API}/search/jql", _search_by_body)
    router.add_get(ISSUE, _issue)
    router.add_get(f"{ISSUE}/comment", _comments)
    router.add_post(f"{ISSUE}/comment", _add_comment)
    router.add_get(f"{ISSUE}/comment/{{comment}}", _comment)
    router.add_get(f"{ISSUE}/transitions", _transitions)
    router.add_post(f"{ISSUE}/transitions", _do_transition)
    router.add_put(f"{ISSUE}/assignee", _assign)


@web.middleware
async def _answer_like_jira(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Authenticate requests, and format refusals as Jira does."""
    is_public = request.path.startswith(CONTROL) or request.path.endswith("/serverInfo")
    if not is_public and not request.app[ACCOUNT].authorizes(request.headers.get("Authorization", "")):
        body = {"message": "Client must be authenticated to access this resource.", "status-code": 401}
        return web.json_response(body, status=401, headers={"X-Seraph-LoginReason": "AUTHENTICATED_FAILED"})
    try:
        return await handler(request)
    except JiraRefusal as refused:
        return web.json_response(refused.body, status=refused.status)
    except JqlError as bad:
        return web.json_response(JiraRefusal(400, str(bad)).body, status=400)
    except web.HTTPNotFound:
        return web.json_response({"message": f"null for uri: {request.url}", "status-code": 404}, status=404)


async def _server_info(request: web.Request) -> web.Response:
    return web.json_response(
        {
            "baseUrl": str(request.url.origin()),
            "version": "1001.0.0-SNAPSHOT",
            "versionNumbers": [1001, 0, 0],
            "deploymentType": "Cloud",
            "buildNumber": 100291,
            "serverTitle": "Jira",
        }
    )


async def _myself(request: web.Request) -> web.Response:
    return web.json_response(_view(request).user(request.app[ACCOUNT].id))


async def _fields(request: web.Request) -> web.Response:
    return web.json_response(_view(request).fields())


async def _search_users(request: web.Request) -> web.Response:
    wanted = request.query.get("query", "").lower()
    users = request.app[STATE_FILE].state["users"]
    found = [id_ for id_, user in users.items() if any(wanted in text.lower() for text in (id_, *user.values()))]
    start, limit = _page_range(request)
    return web.json_response([_view(request).user(account) for account in found[start : start + limit]])


async def _removed(_: web.Request) -> web.Response:
    raise JiraRefusal(410, REMOVED)


async def _search_by_link(request: web.Request) -> web.Response:
    query = request.query
    asked = SearchRequest(
        jql=query.get("jql"),
        next_page_token=query.get("nextPageToken"),
        max_results=_number(request, "maxResults", 50),
        fields=_split_list(query.getall("fields", [])),
        expand=query.get("expand"),
        reconcile_issues=tuple(int(id_) for id_ in query.getall("reconcileIssues", []) if id_.isdecimal()),
    )
    return _search(request, asked)


async def _search_by_body(request: web.Request) -> web.Response:
    return _search(request, await _body(request, SearchRequest))


def _search(request: web.Request, asked: SearchRequest) -> web.Response:
    expand = _split_list([asked.expand or ""])
    most = PAGE_OF_IDS if set(asked.fields) <= {"id", "key"} and not expand else PAGE
    limit = max(1, min(asked.max_results, most))
    tickets, following = find_page(request.app[STATE_FILE].state, asked, me=request.app[ACCOUNT].id, limit=limit)
    view = _view(request)
    answer: dict[str, Any] = {"issues": [view.issue(ticket, asked.fields, expand) for ticket in tickets]}
    if following:
        answer["nextPageToken"] = following
    return web.json_response({**answer, "isLast": following is None})


async def _issue(request: web.Request) -> web.Response:
    fields = _split_list(request.query.getall("fields", [])) or ("*all",)
    expand = _split_list(request.query.getall("expand", []))
    return web.json_response(_view(request).issue(_requested_ticket(request), fields, expand))


async def _comments(request: web.Request) -> web.Response:
    start, limit = _page_range(request)
    newest_first = request.query.get("orderBy", "created") == "-created"
    return web.json_response(
        _view(request).comments(_requested_ticket(request), start, limit, newest_first=newest_first)
    )


async def _comment(request: web.Request) -> web.Response:
    ticket = _requested_ticket(request)
    for written in ticket["comments"]:
        if written["id"] == request.match_info["comment"]:
            return web.json_response(_view(request).comment(ticket, written))
    raise JiraRefusal(404, f"Can not find a comment for the id: {request.match_info['comment']}.")


async def _add_comment(request: web.Request) -> web.Response:
    body: Any = (await _body(request, dict[str, Any])).get("body")
    view, ticket = _view(request), _requested_ticket(request)
    if not (is_document(body) if view.version == "3" else isinstance(body, str)):
        raise JiraRefusal(400, comment="Comment body is not valid!")
    text = body if isinstance(body, str) else to_text(body)
    if not text.strip():
        raise JiraRefusal(400, comment="Comment body can not be empty!")
    state_file = request.app[STATE_FILE]
    with state_file.change("POST comment", key=ticket["key"], text=text):
        written = add_comment(state_file, ticket, datetime.now(UTC), by=request.app[ACCOUNT].id, body=body)
    return web.json_response(view.comment(ticket, written), status=201)


async def _transitions(request: web.Request) -> web.Response:
    _requested_ticket(request)
    only = request.query.get("transitionId")
    steps = [step for step in _view(request).transitions() if only in (None, step["id"])]
    return web.json_response({"expand": "transitions", "transitions": steps})


async def _do_transition(request: web.Request) -> web.Response:
    """Move a ticket to another status. Like a Jira transition without a screen, refuse fields and ignore a comment."""
    body = await _body(request, TransitionRequest)
    ticket = _requested_ticket(request)
    wanted = str(body.transition.id) if body.transition else ""
    if not wanted:
        raise JiraRefusal(400, "Missing 'transition' identifier")
    if wanted not in TRANSITIONS:
        raise JiraRefusal(400, f"Transition id '{wanted}' is not valid for this issue.")
    if body.fields:
        not_there = "cannot be set. It is not on the appropriate screen, or unknown."
        raise JiraRefusal(400, **{name: f"Field '{name}' {not_there}" for name in body.fields})
    state_file, me = request.app[STATE_FILE], request.app[ACCOUNT].id
    with state_file.change("POST transition", key=ticket["key"], to=TRANSITIONS[wanted]):
        change_ticket(state_file, ticket, datetime.now(UTC), by=me, status=TRANSITIONS[wanted])
    return web.Response(status=204)


async def _assign(request: web.Request) -> web.Response:
    body = await _body(request, AssigneeRequest)
    ticket = _requested_ticket(request)
    if body.account_id is msgspec.UNSET:
        raise JiraRefusal(400, "'accountId' must be the only user identifying query parameter in GDPR strict mode.")
    state_file, me = request.app[STATE_FILE], request.app[ACCOUNT].id
    # In Jira, -1 means the default assignee of the project. Projects of the stand-in have no default assignee.
    account = None if body.account_id in (-1, "-1") else body.account_id
    if account is not None and account not in state_file.state["users"]:
        raise JiraRefusal(400, assignee=f"User '{account}' does not exist.")
    with state_file.change("PUT assignee", key=ticket["key"], to=account):
        change_ticket(state_file, ticket, datetime.now(UTC), by=me, assignee=account)
    return web.Response(status=204)


def _requested_ticket(request: web.Request) -> dict[str, Any]:
    return find_ticket(request.app[STATE_FILE], request.match_info["issue"])


def find_ticket(state_file: StateFile, id_or_key: str) -> dict[str, Any]:
    """Return a ticket by its id, or by its key in upper or lower case."""
    for ticket in state_file.state["tickets"].values():
        if id_or_key.upper() == ticket["key"] or id_or_key == ticket["id"]:
            found: dict[str, Any] = ticket
            return found
    raise JiraRefusal(404, "Issue does not exist or you do not have permission to see it.")


def _view(request: web.Request) -> JiraView:
    version = request.match_info["version"]
    return JiraView(request.app[STATE_FILE], str(request.url.origin()), "2" if version == "latest" else version)


async def _body(request: web.Request, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except msgspec.MsgspecError:
        raise JiraRefusal(400, "Invalid request payload. Refer to the REST API documentation and try again.") from None


def _page_range(request: web.Request) -> tuple[int, int]:
    start = _number(request, "startAt", 0)
    limit = _number(request, "maxResults", PAGE)
    return max(0, start), max(0, min(limit, PAGE))


def _number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise JiraRefusal(400, f"The value '{text}' of the parameter '{name}' is not a number.") from None


def _split_list(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())
