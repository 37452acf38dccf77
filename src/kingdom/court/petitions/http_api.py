"""Call an outside system over HTTP. Errors show whether a request may have been sent."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeVar

import aiohttp
import msgspec
from yarl import URL

from kingdom.bus.effects.effect import CallResult, Rejected, Throttled, Unknown
from kingdom.bus.effects.http_result import classify_response
from kingdom.court.remote_http import PAUSE, HttpReply, read_reply
from kingdom.errors import Transient
from kingdom.text import with_reason

# A call without a reply fails after this time.
LONGEST_CALL = timedelta(seconds=20)
# The wait before the next call to an unreachable system.
_UNREACHABLE_WAIT = timedelta(seconds=30)
# The number of characters of an error message that are kept.
REASON_MAX = 500
_T = TypeVar("_T")


class Unreachable(Transient):
    """Raised if a request was not sent, such as when no connection could be made."""


class NotAuthorized(Transient):
    """Raised if a request was not sent because it has no authorization, or because its server must not get one."""


class HttpApi:
    """An outside system with one URL and one authorization. Close it after use."""

    def __init__(self, url: str, headers: Mapping[str, str], longest_call: timedelta = LONGEST_CALL) -> None:
        self.url = url.rstrip("/")
        self.longest_call = longest_call
        self._headers = {"Content-Type": "application/json", **headers}
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, path: str, **parameters: str | int) -> HttpReply:
        """Send a GET request. `path` may be a complete URL from an earlier reply."""
        return await self._request("GET", path, params=parameters, allow_redirects=True)

    async def send(self, path: str, body: Mapping[str, Any]) -> HttpReply:
        """Send a POST request."""
        # A redirect would turn the POST into a GET, whose success proves nothing.
        return await self._request("POST", path, data=msgspec.json.encode(body), allow_redirects=False)

    async def change(self, path: str, body: Mapping[str, Any]) -> HttpReply:
        """Send a PATCH request."""
        return await self._request("PATCH", path, data=msgspec.json.encode(body), allow_redirects=False)

    async def delete(self, path: str) -> HttpReply:
        """Send a DELETE request."""
        return await self._request("DELETE", path, allow_redirects=False)

    async def close(self) -> None:
        """Close all connections."""
        if self._session:
            await self._session.close()
            self._session = None

    async def _request(self, method: str, path: str, **options: Any) -> HttpReply:
        url = self._url_of(path)
        if self._session is None:
            # If a reused connection broke, it would be unclear whether the request arrived.
            connector = aiohttp.TCPConnector(force_close=True)
            limit = aiohttp.ClientTimeout(total=self.longest_call.total_seconds())
            self._session = aiohttp.ClientSession(connector=connector, timeout=limit, headers=self._headers)
        try:
            async with self._session.request(method, url, **options) as answer:
                return await read_reply(answer)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(str(error)) from error

    def _url_of(self, path: str) -> str:
        """Return the URL of a path. A complete URL is returned unchanged, if it is on the same server."""
        if path.startswith("/"):
            return self.url + path
        url, own = URL(path), URL(self.url)
        if (url.scheme, url.host, url.port) != (own.scheme, own.host, own.port):
            address = path.partition("?")[0]
            raise NotAuthorized(f"{address} is not on the server of {self.url}, and must not get its authorization")
        return path


def unreachable_result(name: str, error: Unreachable) -> Throttled:
    """Return the result of a call whose request was not sent."""
    return Throttled(_UNREACHABLE_WAIT, f"{name} cannot be reached: {error}")


def call_result(reply: HttpReply, name: str, message: str, response: Mapping[str, Any]) -> CallResult:
    """Return the result of a call: `response` after a success, otherwise a reason that contains `message`."""
    reason = with_reason(f"{name} answered {reply.status}", message)[:REASON_MAX]
    match classify_response(reply.status, reply.headers, response):
        case Rejected():
            return Rejected(reason)
        case Throttled(after):
            return Throttled(after or PAUSE, reason)
        case Unknown():
            return Unknown(reason)
        case answer:
            return answer


def require_body(reply: HttpReply, kind: type[_T], name: str) -> _T:
    """Return the body of a reply if it has the expected type, or raise Transient."""
    if not reply.ok or not isinstance(reply.body, kind):
        raise Transient(f"{name} answered {reply.status} without the expected data")
    return reply.body
