"""The common parts of the API: authentication, rate limits, conditional requests, pages and errors."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from zlib import crc32

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from kingdom.standins.server import CONTROL, STATE_FILE
from kingdom.standins.state_file import StateFile

TOKEN = web.AppKey("token", str)
# The prefix of downloads, which need no authentication.
LOGS = "/_logs"
_WINDOW_SECONDS = 3600
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GithubCaller:
    """Who sends a request: our user, an App, or an installation of an App with its permissions and repositories.

    `permissions` is None for a user, who may do everything. `repositories` is None if all are accessible.
    """

    login: str
    app: str | None = None
    installation: int | None = None
    permissions: Mapping[str, str] | None = None
    repositories: Sequence[str] | None = None

    def can_see(self, repository: str) -> bool:
        """Return whether a repository exists for the caller."""
        return self.repositories is None or repository in self.repositories


_CALLER = web.RequestKey("caller", GithubCaller)


class GithubRefusal(Exception):
    """Raised when GitHub refuses a request, with the content of its answer."""

    def __init__(self, status: int, message: str, *errors: Any, headers: dict[str, str] | None = None) -> None:
        self.status = status
        self.message = message
        self.errors = errors
        self.headers = headers
        super().__init__(message)

    def answer(self) -> web.Response:
        """Return the HTTP response."""
        body: dict[str, Any] = {"message": self.message}
        if self.errors:
            body["errors"] = list(self.errors)
        body |= {"documentation_url": "https://docs.github.com/rest", "status": str(self.status)}
        return web.json_response(body, status=self.status, headers=self.headers)


def not_found() -> GithubRefusal:
    """Return the refusal for a missing resource."""
    return GithubRefusal(404, "Not Found")


def invalid(resource: str, code: str, **about: str) -> GithubRefusal:
    """Return the refusal for invalid fields."""
    return GithubRefusal(422, "Validation Failed", {"resource": resource, "code": code, **about})


def format_time(at: datetime | None = None) -> str:
    """Format a time, by default now, as GitHub does: without fractions of a second."""
    return (at or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def user_id(login: str) -> int:
    """Return the numeric id of a user."""
    return crc32(login.encode())


def base_of(request: web.Request) -> str:
    """Return the address that the client used, for links in the answer."""
    return str(request.url.origin())


def caller_of(request: web.Request) -> GithubCaller:
    """Return who sent a request."""
    return request[_CALLER]


def repository_of(request: web.Request) -> str:
    """Return the full name of the repository in the path. Raise GithubRefusal if it does not exist."""
    name = f"{request.match_info['owner']}/{request.match_info['name']}"
    if name not in request.app[STATE_FILE].state["repositories"] or not caller_of(request).can_see(name):
        raise not_found()
    return name


async def body_of(request: web.Request, kind: type[_T]) -> _T:
    """Decode the body of a request. Raise GithubRefusal if it is invalid."""
    try:
        return msgspec.json.decode(await request.read() or b"{}", type=kind)
    except msgspec.ValidationError as wrong:
        raise GithubRefusal(422, f"Invalid request.\n\n{wrong}") from wrong
    except msgspec.DecodeError as wrong:
        raise GithubRefusal(400, "Problems parsing JSON") from wrong


def since_of(request: web.Request, name: str = "since") -> str:
    """Return a time in the query of the URL, or an empty string."""
    given = request.query.get(name, "")
    try:
        # An unquoted plus in a query arrives as a space.
        return format_time(datetime.fromisoformat(given.replace(" ", "+"))) if given else ""
    except ValueError as wrong:
        raise GithubRefusal(422, f"Invalid request.\n\n{given!r} is not a timestamp.") from wrong


def page_of(
    request: web.Request,
    items: Sequence[_T],
    render: Callable[[_T], dict[str, Any]],
    *,
    default: int = 30,
    most: int = 100,
) -> web.Response:
    """Answer with the requested page and links to its neighbors."""
    size = min(_positive(request.query.get("per_page"), default), most)
    page = _positive(request.query.get("page"), 1)
    last = max(1, -(-len(items) // size))
    links: dict[str, int] = {}
    if page > 1:
        links |= {"prev": min(page - 1, last), "first": 1}
    if page < last:
        links |= {"next": page + 1, "last": last}
    written = ", ".join(f'<{request.url.update_query(page=str(to))}>; rel="{rel}"' for rel, to in links.items())
    shown = [render(each) for each in items[(page - 1) * size : page * size]]
    return web.json_response(shown, headers={"Link": written} if written else {})


def answer_like_github(authenticate: Callable[[web.Request], GithubCaller]) -> Middleware:
    """Return a middleware that authenticates requests, applies rate limits, and adds the common headers."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith((CONTROL, LOGS)):
            try:
                return await handler(request)
            except GithubRefusal as refused:
                return refused.answer()
        return await _answer(request, handler, authenticate)

    return answer


async def _answer(
    request: web.Request, handler: Handler, authenticate: Callable[[web.Request], GithubCaller]
) -> web.StreamResponse:
    state_file = request.app[STATE_FILE]
    try:
        request[_CALLER] = authenticate(request)
        _check_rate_limit(request, state_file)
        answer = await handler(request)
    except GithubRefusal as refused:
        answer = refused.answer()
    except web.HTTPException:
        answer = not_found().answer()
    if isinstance(answer, web.Response):
        answer = _apply_conditional_request(request, answer)
    limits = state_file.state["limits"]
    # The counter is written with the next change of the state, so a poll does not write the file.
    if answer.status not in (304, 401, 429) and limits["used"] < limits["limit"] and request.path != "/rate_limit":
        limits["used"] += 1
    answer.headers.update(_limit_headers(limits))
    if _CALLER in request and caller_of(request).app is None:
        answer.headers["X-OAuth-Scopes"] = "notifications, repo"
    return answer


def limits_of(state_file: StateFile) -> dict[str, Any]:
    """Return the rate limits of the current hour."""
    limits: dict[str, Any] = state_file.state["limits"]
    if time.time() >= limits["reset"]:
        limits.update(used=0, reset=int(time.time()) + _WINDOW_SECONDS)
    return limits


def _check_rate_limit(request: web.Request, state_file: StateFile) -> None:
    limits = limits_of(state_file)
    secondary = limits["secondary"]
    if secondary and secondary["method"] in ("*", request.method):
        with state_file.change() as state:
            secondary["times"] -= 1
            state["limits"]["secondary"] = secondary if secondary["times"] > 0 else None
        wait = secondary["retry_after"]
        message = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
        raise GithubRefusal(secondary["status"], message, headers={} if wait is None else {"Retry-After": str(wait)})
    if limits["used"] >= limits["limit"] and request.path != "/rate_limit":
        number = user_id(state_file.state["login"])
        raise GithubRefusal(limits["status"], f"API rate limit exceeded for user ID {number}.")


def _limit_headers(limits: dict[str, Any]) -> dict[str, str]:
    return {
        "X-GitHub-Media-Type": "github.v3; format=json",
        "X-RateLimit-Limit": str(limits["limit"]),
        "X-RateLimit-Remaining": str(limits["limit"] - limits["used"]),
        "X-RateLimit-Used": str(limits["used"]),
        "X-RateLimit-Reset": str(limits["reset"]),
        "X-RateLimit-Resource": "core",
    }


def _apply_conditional_request(request: web.Request, answer: web.Response) -> web.Response:
    if request.method != "GET" or answer.status != web.HTTPOk.status_code or not isinstance(answer.body, bytes):
        return answer
    tag = hashlib.sha256(answer.body + answer.headers.get("Link", "").encode()).hexdigest()
    answer.headers["ETag"] = f'W/"{tag}"'
    answer.headers["Cache-Control"] = "private, max-age=60, s-maxage=60"
    known = request.headers.get("If-None-Match")
    modified = answer.headers.get("Last-Modified")
    seen = request.headers.get("If-Modified-Since")
    if known is not None:
        unchanged = tag in (each.strip().removeprefix("W/").strip('"') for each in known.split(","))
    else:
        unchanged = bool(modified and seen) and _not_later(modified or "", seen or "")
    if not unchanged:
        return answer
    headers = {name: value for name, value in answer.headers.items() if not name.startswith("Content-")}
    return web.Response(status=304, headers=headers)


def _not_later(modified: str, seen: str) -> bool:
    try:
        return parsedate_to_datetime(modified) <= parsedate_to_datetime(seen)
    except (TypeError, ValueError):
        return False


def _positive(given: str | None, default: int) -> int:
    return int(given) if given and given.isdecimal() and int(given) > 0 else default
