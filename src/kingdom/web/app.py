"""The application: it checks each request, calls the function of its route, and turns errors into responses."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import msgspec
import structlog
from aiohttp import web

from kingdom.bus.record import refuse_unstorable
from kingdom.errors import KingdomError, MalformedRequest
from kingdom.web.access import ACCESS, AccessCheck
from kingdom.web.failures import error_response, failure_response, http_error_response
from kingdom.web.metrics import WebMetrics
from kingdom.web.openapi import document
from kingdom.web.pages.table import OPEN_PAGES, PAGES
from kingdom.web.route import ApiCall, ApiRoute, Audience, WebContext
from kingdom.web.routes import API, API_ROUTES
from kingdom.web.stream import STREAM, LogStream

BODY_MAX = 1024 * 1024
# A client that sends its body more slowly would occupy the server.
BODY_SECONDS = 30.0
_PATH_PART_MAX = 200
_KEY_MAX = 200
# The status that nginx logs for a client that leaves before the response is complete.
_CLIENT_LEFT = 499
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = structlog.get_logger("kingdom.web")


async def show_openapi(_call: ApiCall) -> web.Response:
    """Describe this API as an OpenAPI 3.1 document."""
    return web.Response(body=document(), content_type="application/json")


OPEN_FILES = {f"{API}/openapi.json": show_openapi, **OPEN_PAGES}
ROUTES: tuple[ApiRoute, ...] = (
    *API_ROUTES,
    *PAGES,
    *(
        ApiRoute(method="GET", path=path, right=Audience.EVERYONE, run=run, result=None)
        for path, run in OPEN_FILES.items()
    ),
)


def create_app(context: WebContext, access: AccessCheck, metrics: WebMetrics, stream: LogStream) -> web.Application:
    """Return the application with all routes."""
    app = web.Application(client_max_size=BODY_MAX, middlewares=[_measure_requests(access, metrics)])
    app[ACCESS], app[STREAM] = access, stream
    for route in ROUTES:
        app.router.add_route(route.method, route.path, _handler(route, context, access))
    app.on_response_prepare.append(_add_security_headers(access))
    app.on_shutdown.append(lambda _: stream.stop())
    return app


def _handler(route: ApiRoute, context: WebContext, access: AccessCheck) -> _Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        visitor = await access.admit(request, route.right)
        raw = await _read_raw(request) if route.method != "GET" else b""
        call = ApiCall(
            context=context,
            visitor=visitor,
            request=request,
            path=dict(request.match_info),
            query=_read_query(request, route.query),
            body=_read_body(request, raw, route.body),
            raw=raw,
        )
        result = await route.run(call)
        if isinstance(result, web.StreamResponse):
            return result
        body = msgspec.json.encode(result)
        return web.Response(body=body, content_type="application/json", headers=call.headers)

    return handle


def _measure_requests(access: AccessCheck, metrics: WebMetrics) -> Any:
    @web.middleware
    async def measure(request: web.Request, handler: _Handler) -> web.StreamResponse:
        began, status = time.monotonic(), 500
        try:
            response = await _answer(request, handler, access)
        except asyncio.CancelledError:
            status = _CLIENT_LEFT
            raise
        else:
            status = response.status
            return response
        finally:
            resource = request.match_info.route.resource
            route = resource.canonical if resource else "unknown"
            metrics.record(route, status, time.monotonic() - began)

    return measure


async def _answer(request: web.Request, handler: _Handler, access: AccessCheck) -> web.StreamResponse:
    try:
        _refuse_unstorable_head(request)
        access.check_address(request)
        return await handler(request)
    except KingdomError as error:
        return error_response(error, request)
    except web.HTTPException as error:
        return http_error_response(error, request)
    except (ConnectionError, web.RequestPayloadError) as error:
        return error_response(MalformedRequest(f"the request broke off: {error}"), request)
    except Exception:  # noqa: BLE001 - a defect must not reveal details or stop the server
        _log.exception("request failed", path=request.path)
        return failure_response(request)


def _refuse_unstorable_head(request: web.Request) -> None:
    for name, value in request.headers.items():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise MalformedRequest(f"the header {name!a} is not text in UTF-8: correct it") from None
    parts = (*request.match_info.values(), *request.query.values(), *request.query)
    if any(len(part) > _PATH_PART_MAX for part in request.match_info.values()):
        raise MalformedRequest(f"a part of the path is longer than {_PATH_PART_MAX} characters: check the id")
    if len(request.headers.get("Idempotency-Key", "")) > _KEY_MAX:
        raise MalformedRequest(f"the Idempotency-Key is longer than {_KEY_MAX} characters: use a UUID")
    refuse_unstorable("the address", {"parts": list(parts)})


async def _read_raw(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason="The body did not arrive in time") from None


def _read_query(request: web.Request, kind: type[msgspec.Struct] | None) -> Any:
    if kind is None:
        return None
    lists = _list_fields(kind)
    given = {name: request.query.getall(name) if name in lists else request.query[name] for name in request.query}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise MalformedRequest(f"the query of the address is wrong: {error}") from error


@cache
def _list_fields(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Return the names of the query parameters that can be repeated."""
    return frozenset(each.encode_name for each in msgspec.structs.fields(kind) if each.default == ())


def _read_body(request: web.Request, raw: bytes, kind: type[msgspec.Struct] | None) -> Any:
    if kind is None:
        return None
    if raw and request.content_type != "application/json":
        raise MalformedRequest("send the body as application/json")
    try:
        body = msgspec.json.decode(raw or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRequest(f"the body does not fit: {error}") from error
    refuse_unstorable("the body", msgspec.to_builtins(body))
    return body


def _add_security_headers(access: AccessCheck) -> Any:
    headers = {
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
            " base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
        ),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
    if access.settings.is_https:
        headers["Strict-Transport-Security"] = "max-age=31536000"

    async def add(_request: web.Request, response: web.StreamResponse) -> None:
        for name, value in headers.items():
            response.headers.setdefault(name, value)

    return add
