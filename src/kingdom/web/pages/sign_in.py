"""The page that redeems an invite: its script posts the secret of the fragment, which no server sees."""

from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files

from aiohttp import web

from kingdom.web.route import ApiCall

_ASSETS = files("kingdom.web") / "assets"


async def show_sign_in(_call: ApiCall) -> web.Response:
    """Show the page that signs a person in."""
    return _file("sign-in.html", "text/html")


async def show_sign_in_script(_call: ApiCall) -> web.Response:
    """Return the script of the page that signs a person in."""
    return _file("sign-in.js", "text/javascript")


FILES: Mapping[str, Callable[[ApiCall], Awaitable[web.Response]]] = {
    "/sign-in": show_sign_in,
    "/assets/sign-in.js": show_sign_in_script,
}


def _file(name: str, content_type: str) -> web.Response:
    text = (_ASSETS / name).read_text(encoding="utf-8")
    return web.Response(text=text, content_type=content_type, charset="utf-8")
