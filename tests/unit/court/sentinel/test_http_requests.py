"""What the Sentinel says about a reply that it cannot use."""

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kingdom.court.sentinel.http_requests import send_request
from kingdom.errors import Misconfigured


async def test_a_redirect_is_not_followed_and_the_error_names_the_new_address() -> None:
    asked: list[str] = []

    async def redirect(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({}, status=301, headers={"Location": "https://api.example/repositories/7?key=secret"})

    application = web.Application()
    application.router.add_get("/{path:.*}", redirect)
    async with TestServer(application) as server, aiohttp.ClientSession() as session:
        url = str(server.make_url("/repos/acme/shop/pulls/1"))
        with pytest.raises(Misconfigured) as raised:
            await send_request(session, "GET", url, headers={"Authorization": "Bearer token"})
    assert asked == ["/repos/acme/shop/pulls/1"]
    assert f"{url} answered 301: it has moved to https://api.example/repositories/7, which is not" in str(raised.value)
    assert "renamed" in str(raised.value)
