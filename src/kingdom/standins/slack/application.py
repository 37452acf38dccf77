"""The server of the Slack stand-in."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from kingdom.standins.server import CONTROL, new_application
from kingdom.standins.slack import control, web_api
from kingdom.standins.slack.buttons import answer_click
from kingdom.standins.slack.chat import LAST_POSTS
from kingdom.standins.slack.socket_mode import SENDER, EnvelopeSender, connect, run_sender, ticket
from kingdom.standins.slack.workspace import empty_workspace
from kingdom.standins.state_file import StateFile

_CONTROL_HANDLERS: dict[str, Callable[[web.Request], Awaitable[web.Response]]] = {
    "users": control.control_handler(control.NewSlackUser, control.add_person),
    "channels": control.control_handler(control.NewChannel, control.create_channel),
    "members": control.control_handler(control.Membership, control.change_membership),
    "messages": control.control_handler(control.NewMessage, control.write_message),
    "clicks": control.control_handler(control.Click, control.click_button),
    "disconnects": control.control_handler(control.Disconnection, control.disconnect),
    "settings": control.control_handler(control.SlackSettingsChange, control.change_settings),
}


def build_slack(state: Path, *, bot_token: str = "xoxb-standin", app_token: str = "xapp-standin") -> web.Application:  # noqa: S107 - tokens of a server without secrets
    """Return a Slack server with one workspace, one app and its state in a file."""
    state_file = StateFile(state, empty_workspace())
    application = new_application(state_file)
    application[SENDER] = EnvelopeSender(state_file)
    application[LAST_POSTS] = {}
    application[web_api.BOT_TOKEN] = bot_token
    application[web_api.APP_TOKEN] = app_token
    application.middlewares.insert(0, web_api.answer_like_slack)
    application.router.add_route("*", f"{web_api.PREFIX}{{method}}", web_api.call)
    application.router.add_get(web_api.SOCKET, _connect_with_ticket)
    application.router.add_post("/actions/{team}/{secret}", answer_click)
    application.router.add_get(f"{CONTROL}/connections", control.show_connections)
    for name, handler in _CONTROL_HANDLERS.items():
        application.router.add_post(f"{CONTROL}/{name}", handler)
    application.cleanup_ctx.append(run_sender)
    application.on_shutdown.append(_close_sockets)
    return application


async def _connect_with_ticket(request: web.Request) -> web.StreamResponse:
    if request.query.get("ticket") != ticket(request.app[web_api.APP_TOKEN]):
        return web.json_response({"ok": False, "error": "invalid_ticket"}, status=403)
    return await connect(request)


async def _close_sockets(application: web.Application) -> None:
    await application[SENDER].close()
