"""The server of the Slack stand-in, put together."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from kingdom.standins.book import Book
from kingdom.standins.server import CONTROL, new_application
from kingdom.standins.slack import people, web_api
from kingdom.standins.slack.buttons import answer_click
from kingdom.standins.slack.chat import PACE
from kingdom.standins.slack.socket_mode import COURIER, Courier, connect, running_courier, ticket
from kingdom.standins.slack.workspace import empty_workspace

_WISHES: dict[str, Callable[[web.Request], Awaitable[web.Response]]] = {
    "users": people.wished(people.NewUser, people.join),
    "channels": people.wished(people.NewChannel, people.found),
    "members": people.wished(people.Membership, people.enter_or_leave),
    "messages": people.wished(people.Words, people.write),
    "clicks": people.wished(people.Click, people.click),
    "disconnects": people.wished(people.Goodbye, people.disconnect),
    "settings": people.wished(people.Settings, people.change_settings),
}


def slack(state: Path, *, bot_token: str = "xoxb-standin", app_token: str = "xapp-standin") -> web.Application:  # noqa: S107 - tokens of a server that has no secrets
    """Return a Slack of one workspace and one app that keeps what it knows in a file."""
    book = Book(state, empty_workspace())
    application = new_application(book)
    application[COURIER] = Courier(book)
    application[PACE] = {}
    application[web_api.BOT_TOKEN] = bot_token
    application[web_api.APP_TOKEN] = app_token
    application.middlewares.insert(0, web_api.in_slacks_words)
    application.router.add_route("*", f"{web_api.PREFIX}{{method}}", web_api.call)
    application.router.add_get(web_api.SOCKET, _connect_with_ticket)
    application.router.add_post("/actions/{team}/{secret}", answer_click)
    application.router.add_get(f"{CONTROL}/connections", people.show_connections)
    for name, handler in _WISHES.items():
        application.router.add_post(f"{CONTROL}/{name}", handler)
    application.cleanup_ctx.append(running_courier)
    application.on_shutdown.append(_close_sockets)
    return application


async def _connect_with_ticket(request: web.Request) -> web.StreamResponse:
    if request.query.get("ticket") != ticket(request.app[web_api.APP_TOKEN]):
        return web.json_response({"ok": False, "error": "invalid_ticket"}, status=403)
    return await connect(request)


async def _close_sockets(application: web.Application) -> None:
    await application[COURIER].close()
