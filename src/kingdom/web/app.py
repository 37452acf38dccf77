"""Every route with its right, and the application that serves them."""

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
import structlog
from aiohttp import web

from kingdom.access.credentials import Credential
from kingdom.access.rights import Right
from kingdom.bus.record import refuse_unstorable
from kingdom.court.documents import Assignment, ExternalEvent
from kingdom.court.explain.timeline import Timeline
from kingdom.court.king.why import EventExplanation
from kingdom.court.package import Package
from kingdom.court.status import CourtStatus, HealthSummary
from kingdom.errors import KingdomError, MalformedRequest
from kingdom.views.bus import ExplainedSituation, LoggedEntryView, PauseResult, PinView, ResumeResult, StreamStatsView
from kingdom.views.dead_letters import DeadLetterDetails, DeadLetterKey, DiscardResult, ListedDeadLetter, RedriveResult
from kingdom.views.generals import ListedGenerals
from kingdom.views.petitions import ListedPetition, PetitionDetails
from kingdom.views.questions import AnswerResult, OpenQuestion
from kingdom.views.workflows import CheckpointDetails, WorkflowDetails
from kingdom.web.access import AccessCheck
from kingdom.web.api import administration, bus, court, people, runs
from kingdom.web.failures import error_response, failure_response, http_error_response
from kingdom.web.metrics import WebMetrics
from kingdom.web.pages import sign_in
from kingdom.web.route import ApiCall, ApiRoute, Audience, Empty, Page, PageQuery, WebContext, page_of
from kingdom.workflow.model.resources.host import Host
from kingdom.workflow.model.run.workflow import Workflow

API = "/api/v1"
ACCESS: web.AppKey[AccessCheck] = web.AppKey("access", AccessCheck)
BODY_MAX = 1024 * 1024
_PATH_PART_MAX = 200
_KEY_MAX = 200
_LOOK, _ANSWER, _ACT, _ADMINISTER = Right.LOOK, Right.ANSWER, Right.ACT, Right.ADMINISTER
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = structlog.get_logger("kingdom.web")


def _get(path: str, right: Right | Audience, run: Any, result: Any, query: Any = None) -> ApiRoute:
    return ApiRoute(method="GET", path=path, right=right, run=run, result=result, query=query)


def _post(path: str, right: Right | Audience, run: Any, result: Any, body: Any = None) -> ApiRoute:
    return ApiRoute(method="POST", path=path, right=right, run=run, result=result, body=body, takes_key=True)


def _issue(method: Any, path: str, right: Right | Audience, run: Any, result: Any, body: Any = None) -> ApiRoute:
    """Return a route about a credential. A repeated request is refused, or ends what has ended already."""
    return ApiRoute(method=method, path=path, right=right, run=run, result=result, body=body)


LOOKING: tuple[ApiRoute, ...] = (
    _get(f"{API}/status", _LOOK, court.show_status, CourtStatus),
    _get(f"{API}/health", _LOOK, court.show_health, HealthSummary),
    _get(f"{API}/costs", _LOOK, court.show_costs, court.Costs),
    _get(f"{API}/runs", _LOOK, runs.list_runs, Page[Workflow], runs.RunsQuery),
    _get(f"{API}/runs/{{id}}", _LOOK, runs.show_run, WorkflowDetails),
    _get(f"{API}/runs/{{id}}/checkpoints", _LOOK, runs.list_checkpoints, Page[CheckpointDetails], PageQuery),
    _get(f"{API}/runs/{{id}}/log", _LOOK, runs.list_run_log, page_of(LoggedEntryView), PageQuery),
    _get(f"{API}/log", _LOOK, runs.list_log, page_of(LoggedEntryView), PageQuery),
    _get(f"{API}/events", _LOOK, court.list_events, Page[ExternalEvent], court.EventsQuery),
    _get(f"{API}/events/{{id}}", _LOOK, court.show_event, ExternalEvent),
    _get(f"{API}/events/{{id}}/why", _LOOK, court.show_event_why, EventExplanation),
    _get(f"{API}/explain/{{id}}", _LOOK, court.explain, Timeline),
    _get(f"{API}/assignments", _LOOK, court.list_assignments, Page[Assignment], court.AssignmentsQuery),
    _get(f"{API}/assignments/{{id}}", _LOOK, court.show_assignment, Assignment),
    _get(f"{API}/questions", _LOOK, people.list_questions, Page[OpenQuestion], PageQuery),
    _get(f"{API}/petitions", _LOOK, people.list_petitions, Page[ListedPetition], people.PetitionsQuery),
    _get(f"{API}/petitions/{{id}}", _LOOK, people.show_petition, PetitionDetails),
    _get(f"{API}/bus/streams", _LOOK, bus.list_streams, page_of(StreamStatsView), PageQuery),
    _get(f"{API}/bus/pins", _LOOK, bus.list_pins, page_of(PinView), PageQuery),
    _get(f"{API}/bus/events/{{id}}", _LOOK, bus.show_bus_event, page_of(ExplainedSituation)),
    _get(f"{API}/bus/dead-letters", _LOOK, bus.list_dead_letters, page_of(ListedDeadLetter), bus.LettersQuery),
    _get(f"{API}/bus/dead-letters/{{id}}", _LOOK, bus.show_dead_letter, page_of(DeadLetterDetails), bus.StreamQuery),
    _get(f"{API}/generals", _LOOK, court.list_generals, ListedGenerals),
    _get(f"{API}/generals/{{name}}", _LOOK, court.show_general, Package),
    _get(f"{API}/hosts", _LOOK, court.list_hosts, Page[Host], PageQuery),
)
ACTING: tuple[ApiRoute, ...] = (
    _post(f"{API}/questions/{{id}}/answer", _ANSWER, people.post_answer, AnswerResult, people.AnswerToQuestion),
    _post(f"{API}/petitions/{{id}}/approve", _ANSWER, people.post_approve, AnswerResult, people.Decision),
    _post(f"{API}/petitions/{{id}}/reject", _ANSWER, people.post_reject, AnswerResult, people.Decision),
    _post(f"{API}/runs/{{id}}/pause", _ACT, runs.post_run_pause, Workflow),
    _post(f"{API}/runs/{{id}}/resume", _ACT, runs.post_run_resume, Workflow, runs.ResumeRun),
    _post(f"{API}/runs/{{id}}/cancel", _ACT, runs.post_run_cancel, Workflow),
    _post(f"{API}/events", _ACT, court.post_event, ExternalEvent, court.EventToSend),
    _post(f"{API}/events/{{id}}/reroute", _ACT, court.post_event_reroute, ExternalEvent),
    _post(f"{API}/bus/streams/{{name}}/pause", _ACT, bus.post_stream_pause, PauseResult, bus.PauseStream),
    _post(f"{API}/bus/streams/{{name}}/resume", _ACT, bus.post_stream_resume, ResumeResult),
    _post(f"{API}/bus/redrive", _ACT, bus.post_redrive, RedriveResult, bus.RedriveLetters),
    _post(f"{API}/bus/dead-letters/{{id}}/patch", _ACT, bus.post_dead_letter_patch, DeadLetterKey, bus.PatchLetter),
    _post(
        f"{API}/bus/dead-letters/{{id}}/discard", _ACT, bus.post_dead_letter_discard, DiscardResult, bus.DiscardLetter
    ),
    _post(f"{API}/hosts/{{name}}/retire", _ADMINISTER, court.post_host_retire, Host, court.RetireHost),
)
ADMINISTERING: tuple[ApiRoute, ...] = (
    _issue(
        "POST",
        f"{API}/session",
        Audience.EVERYONE,
        administration.post_session,
        administration.Myself,
        administration.SignIn,
    ),
    _issue("DELETE", f"{API}/session", Audience.SIGNED_IN, administration.delete_session, Empty),
    _get(f"{API}/me", Audience.SIGNED_IN, administration.show_me, administration.Myself),
    _get(f"{API}/tokens", _ADMINISTER, administration.list_tokens, Page[Credential], PageQuery),
    _issue(
        "POST",
        f"{API}/tokens",
        _ADMINISTER,
        administration.post_token,
        administration.IssuedSecret,
        administration.NewToken,
    ),
    _issue("DELETE", f"{API}/tokens/{{name}}", _ADMINISTER, administration.delete_token, Page[Credential]),
    _issue(
        "POST",
        f"{API}/invites",
        _ADMINISTER,
        administration.post_invite,
        administration.IssuedSecret,
        administration.NewInvite,
    ),
    _get(f"{API}/sessions", _ADMINISTER, administration.list_sessions, Page[Credential], PageQuery),
    _issue("DELETE", f"{API}/sessions/{{name}}", _ADMINISTER, administration.delete_sessions, Page[Credential]),
)
API_ROUTES: tuple[ApiRoute, ...] = (*LOOKING, *ACTING, *ADMINISTERING)


async def show_openapi(_call: ApiCall) -> web.Response:
    """Describe this API as an OpenAPI 3.1 document."""
    from kingdom.web.openapi import document  # noqa: PLC0415 - it needs this table

    return web.Response(body=document(), content_type="application/json")


ROUTES: tuple[ApiRoute, ...] = (
    *API_ROUTES,
    _get(f"{API}/openapi.json", Audience.EVERYONE, show_openapi, None),
    *(_get(path, Audience.EVERYONE, run, None) for path, run in sign_in.FILES.items()),
)


def create_app(
    context: WebContext, access: AccessCheck, metrics: WebMetrics, extra: Iterable[ApiRoute] = ()
) -> web.Application:
    """Return the application with all routes; `extra` are routes of other modules, such as the live stream."""
    app = web.Application(client_max_size=BODY_MAX, middlewares=[_guard(access, metrics)])
    app[ACCESS] = access
    for route in (*ROUTES, *extra):
        app.router.add_route(route.method, route.path, _handler(route, context, access))
    app.on_response_prepare.append(_add_security_headers(access))
    return app


def _handler(route: ApiRoute, context: WebContext, access: AccessCheck) -> _Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        visitor = await access.admit(request, route.right)
        raw = await request.read() if route.method != "GET" else b""
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


def _guard(access: AccessCheck, metrics: WebMetrics) -> Any:
    @web.middleware
    async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
        began, status = time.monotonic(), 500
        try:
            response = await _answer(request, handler, access)
            status = response.status
            return response
        finally:
            resource = request.match_info.route.resource
            route = resource.canonical if resource else "unknown"
            metrics.record(route, status, time.monotonic() - began)

    return guard


async def _answer(request: web.Request, handler: _Handler, access: AccessCheck) -> web.StreamResponse:
    try:
        access.check_address(request)
        _refuse_unstorable_address(request)
        return await handler(request)
    except KingdomError as error:
        return error_response(error)
    except web.HTTPException as error:
        return http_error_response(error)
    except (ConnectionError, web.RequestPayloadError) as error:
        return error_response(MalformedRequest(f"the request broke off: {error}"))
    except Exception:  # noqa: BLE001 - a defect must not reveal details or stop the server
        _log.exception("request failed", path=request.path)
        return failure_response()


def _refuse_unstorable_address(request: web.Request) -> None:
    parts = (*request.match_info.values(), *request.query.values(), *request.query)
    if any(len(part) > _PATH_PART_MAX for part in request.match_info.values()):
        raise MalformedRequest(f"a part of the path is longer than {_PATH_PART_MAX} characters: use a whole id")
    if len(request.headers.get("Idempotency-Key", "")) > _KEY_MAX:
        raise MalformedRequest(f"the Idempotency-Key is longer than {_KEY_MAX} characters: use a UUID")
    refuse_unstorable("the address", {"parts": list(parts)})


def _read_query(request: web.Request, kind: type[msgspec.Struct] | None) -> Any:
    if kind is None:
        return None
    lists = {each.encode_name for each in msgspec.structs.fields(kind) if each.default == ()}
    given = {name: request.query.getall(name) if name in lists else request.query[name] for name in request.query}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise MalformedRequest(f"the query of the address is wrong: {error}") from error


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
