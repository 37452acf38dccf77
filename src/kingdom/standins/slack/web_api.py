"""The Web API: tokens, arguments in all formats that Slack accepts, and the table of methods."""

from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from kingdom.standins.server import STATE_FILE
from kingdom.standins.slack import chat, conversations
from kingdom.standins.slack.socket_mode import SENDER, ticket
from kingdom.standins.slack.workspace import SlackRateLimit, SlackRefusal

BOT_TOKEN = web.AppKey("bot_token", str)
APP_TOKEN = web.AppKey("app_token", str)
PREFIX = "/api/"
SOCKET = "/link/"


async def call(request: web.Request) -> web.Response:
    """Call one method of the Web API."""
    method = request.match_info["method"]
    try:
        arguments = await _arguments(request)
        _check_token(request, method, arguments.pop("token", ""))
        if method not in METHODS:
            raise SlackRefusal("unknown_method")  # noqa: TRY301 - one place answers every refusal
        answer = METHODS[method](request, arguments)
    except SlackRefusal as refused:
        return web.json_response({"ok": False, "error": str(refused)})
    except SlackRateLimit:
        return web.json_response({}, status=429, headers={"Retry-After": "1"})
    request.app[SENDER].wake()
    return web.json_response({"ok": True, **answer})


@web.middleware
async def answer_like_slack(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Replace the body and the headers of an error with those that Slack uses."""
    answer = await handler(request)
    if answer.status < web.HTTPBadRequest.status_code or not request.path.startswith(PREFIX):
        return answer
    if answer.status != web.HTTPTooManyRequests.status_code:
        return web.json_response({"ok": False, "error": "internal_error"}, status=answer.status)
    seconds = answer.headers.get("Retry-After", "1")
    limited = {"ok": False, "error": "ratelimited"}
    return web.json_response(limited, status=answer.status, headers={"Retry-After": seconds})


def _test_api(_request: web.Request, arguments: dict[str, Any]) -> dict[str, Any]:
    if arguments.get("error"):
        raise SlackRefusal(arguments["error"])
    return {"args": arguments}


def _test_token(request: web.Request, _arguments: dict[str, Any]) -> dict[str, Any]:
    state = request.app[STATE_FILE].state
    team, app = state["team"], state["app"]
    return {
        "url": f"{request.scheme}://{request.host}/",
        "team": team["name"],
        "user": app["name"],
        "team_id": team["id"],
        "user_id": app["user_id"],
        "bot_id": app["bot_id"],
        "is_enterprise_install": False,
    }


def _open_socket(request: web.Request, _arguments: dict[str, Any]) -> dict[str, Any]:
    app_id = request.app[STATE_FILE].state["app"]["id"]
    return {"url": f"ws://{request.host}{SOCKET}?ticket={ticket(request.app[APP_TOKEN])}&app_id={app_id}"}


METHODS: dict[str, Callable[[web.Request, dict[str, Any]], dict[str, Any]]] = {
    "api.test": _test_api,
    "auth.test": _test_token,
    "apps.connections.open": _open_socket,
    "chat.postMessage": chat.post_message,
    "chat.postEphemeral": chat.post_ephemeral,
    "chat.update": chat.update_message,
    "conversations.history": conversations.get_history,
    "conversations.replies": conversations.get_replies,
    "conversations.open": conversations.open_conversation,
    "conversations.info": conversations.get_channel,
    "conversations.list": conversations.list_channels,
    "conversations.members": conversations.list_members,
    "users.info": conversations.get_user,
    "users.list": conversations.list_users,
    "reactions.add": chat.add_reaction,
    "reactions.remove": chat.remove_reaction,
    "reactions.get": chat.get_reactions,
}


async def _arguments(request: web.Request) -> dict[str, Any]:
    """Return the arguments of a call from its URL, form or JSON, and the token from its header."""
    arguments: dict[str, Any] = dict(request.query)
    if request.content_type == "application/json":
        try:
            body = await request.json() if request.can_read_body else {}
        except ValueError as broken:
            raise SlackRefusal("invalid_json") from broken
        if not isinstance(body, dict):
            raise SlackRefusal("json_not_object")
        arguments |= body
    else:
        arguments |= await request.post()
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return {**arguments, "token": token} if scheme == "Bearer" else arguments


def _check_token(request: web.Request, method: str, token: str) -> None:
    if method == "api.test":
        return
    if not token:
        raise SlackRefusal("not_authed")
    wanted, other = request.app[BOT_TOKEN], request.app[APP_TOKEN]
    if method == "apps.connections.open":
        wanted, other = other, wanted
    if token != wanted:
        raise SlackRefusal("not_allowed_token_type" if token == other else "invalid_auth")
