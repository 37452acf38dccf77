"""Every error as one JSON shape, worded as the command line words it, or as a page for browsers."""

from collections.abc import Mapping

import msgspec
from aiohttp import web

from kingdom.errors import (
    Conflict,
    IllegalTransition,
    KingdomError,
    LeaseLost,
    MalformedEvent,
    MalformedRequest,
    Misconfigured,
    NotAllowed,
    NotFound,
    NotSignedIn,
    Permanent,
    ProgramFailed,
    Refused,
    Transient,
    Unreadable,
)
from kingdom.web.pages.frame import html_response

_LATER = "send the same request again after a moment"
_CHANGE = "read the current state, and decide again"
_CORRECT = "correct the request; /api/v1/openapi.json describes it"
# The status and the next step of each error. The first class that matches is used.
_ANSWERS: Mapping[type[KingdomError], tuple[int, str]] = {
    NotSignedIn: (401, "sign in with an invite (`kingdom web invite NAME`), or send a token as a bearer token"),
    NotAllowed: (403, "ask an administrator for the right"),
    Refused: (403, "send the request from the address of this server"),
    MalformedRequest: (400, _CORRECT),
    MalformedEvent: (400, _CORRECT),
    Misconfigured: (400, _CORRECT),
    NotFound: (404, "list what exists, and use a whole id"),
    IllegalTransition: (409, _CHANGE),
    Permanent: (409, _CHANGE),
    Conflict: (409, _LATER),
    LeaseLost: (409, _LATER),
    Transient: (503, _LATER),
    ProgramFailed: (502, "look at the log of the server"),
    Unreadable: (500, "use the version of Kingdom that wrote the document"),
    KingdomError: (500, "look at the log of the server"),
}
_TITLES = {
    400: "This address is wrong",
    401: "Sign in first",
    403: "This is not allowed",
    404: "There is no such page",
    503: "This is not possible at the moment",
}
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "too_large", 408: "too_slow"}


class ApiError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request failed: a code for programs, what happened, and what to do next."""

    code: str
    message: str
    next: str


def error_response(error: KingdomError, request: web.Request | None = None) -> web.Response:
    """Return the response to a request that failed with a known error: a page for browsers, else JSON."""
    status, advice = next(found for kind, found in _ANSWERS.items() if isinstance(error, kind))
    headers = {"Retry-After": "1"} if isinstance(error, Transient) else {}
    if isinstance(error, NotSignedIn):
        headers["WWW-Authenticate"] = "Bearer"
    return _response(status, ApiError(code=error.code, message=str(error), next=advice), headers, request)


def http_error_response(error: web.HTTPException, request: web.Request) -> web.Response:
    """Return the response for an error of the HTTP server itself, such as an unknown path."""
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    code = _HTTP_CODES.get(error.status, "malformed_request")
    return _response(error.status, ApiError(code=code, message=error.reason, next=_CORRECT), headers, request)


def failure_response(request: web.Request) -> web.Response:
    """Return the response after a defect, without its details."""
    message = "the server failed; its log has the details"
    error = ApiError(code="error", message=message, next="report the defect with the lines of the log")
    return _response(500, error, {}, request)


def _response(
    status: int, error: ApiError, headers: Mapping[str, str], request: web.Request | None = None
) -> web.Response:
    if request is not None and _wants_page(request):
        title = _TITLES.get(status, "This did not work")
        response = html_response("error.html", http_status=status, title=title, error=error)
        response.headers.extend(headers)
        return response
    return web.Response(
        status=status, body=msgspec.json.encode(error), content_type="application/json", headers=headers
    )


def _wants_page(request: web.Request) -> bool:
    return not request.path.startswith("/api/") and "text/html" in request.headers.get("Accept", "")
