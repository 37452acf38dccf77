"""The files of the pages: two scripts, a style sheet and a picture. The address of a file contains its digest."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib.resources import files

from aiohttp import web

from kingdom.web.route import ApiCall

_TYPES = {"kingdom.css": "text/css", "kingdom.js": "text/javascript", "sign-in.js": "text/javascript"}
_PICTURES = {"crown.svg": "image/svg+xml"}
_UNCHANGING = {"Cache-Control": "public, max-age=31536000, immutable"}


def asset_url(name: str) -> str:
    """Return the address of a file, which changes with its content, so that browsers may keep the file."""
    return f"/assets/{name}?v={read_asset(name)[1]}"


def _handler(name: str, content_type: str) -> Callable[[ApiCall], Awaitable[web.Response]]:
    async def show_asset(call: ApiCall) -> web.Response:
        """Return a file of the pages."""
        content, digest = read_asset(name)
        headers = _UNCHANGING if call.request.query.get("v") == digest else {}
        response = web.Response(body=content, content_type=content_type, charset="utf-8", headers=headers)
        response.enable_compression()
        return response

    return show_asset


@cache
def read_asset(name: str) -> tuple[bytes, str]:
    """Return the content of a file and its digest."""
    content = (files("kingdom.web") / "assets" / name).read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:16]


ASSETS: Mapping[str, Callable[[ApiCall], Awaitable[web.Response]]] = {
    f"/assets/{name}": _handler(name, content_type) for name, content_type in (_TYPES | _PICTURES).items()
}
