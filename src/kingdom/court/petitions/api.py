"""Calling a system outside over HTTP, such that an error tells whether anything can have been sent."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeVar

import aiohttp
import msgspec

from kingdom.bus.effects.effect import CallResult, Rejected, Throttled, Unknown
from kingdom.bus.effects.http_result import classify_response
from kingdom.court.outside import PAUSE, Reply, reply_of
from kingdom.errors import Transient
from kingdom.text import with_reason

LONGEST_CALL = timedelta(seconds=20)
# How long a system that cannot be reached is left alone.
_UNREACHABLE_WAIT = timedelta(seconds=30)
REASON_MAX = 500
_T = TypeVar("_T")


class Unreachable(Transient):
    """Raised when no connection came about, so that nothing can have been sent."""


class Api:
    """A system outside under one address and one authorization; close it in the end."""

    def __init__(self, url: str, headers: Mapping[str, str], longest_call: timedelta = LONGEST_CALL) -> None:
        self.url = url.rstrip("/")
        self.longest_call = longest_call
        self._headers = {"Content-Type": "application/json", **headers}
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, path: str, **parameters: str | int) -> Reply:
        """Read something; `path` may be a whole address that the system gave."""
        return await self._request("GET", path, params=parameters, allow_redirects=True)

    async def send(self, path: str, body: Mapping[str, Any]) -> Reply:
        """Have something done."""
        # A redirect of a POST would arrive as a GET, and its success would mean nothing.
        return await self._request("POST", path, data=msgspec.json.encode(body), allow_redirects=False)

    async def close(self) -> None:
        """Let go of every connection."""
        if self._session:
            await self._session.close()
            self._session = None

    async def _request(self, method: str, path: str, **options: Any) -> Reply:
        if self._session is None:
            # A kept connection may be dead, and what is sent into it neither arrived nor not.
            connector = aiohttp.TCPConnector(force_close=True)
            limit = aiohttp.ClientTimeout(total=self.longest_call.total_seconds())
            self._session = aiohttp.ClientSession(connector=connector, timeout=limit, headers=self._headers)
        url = path if path.startswith(f"{self.url}/") else self.url + path
        try:
            async with self._session.request(method, url, **options) as answer:
                return await reply_of(answer)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(str(error)) from error


def unreachable(name: str, error: Unreachable) -> Throttled:
    """Return what it means that nothing could be sent."""
    return Throttled(_UNREACHABLE_WAIT, f"{name} cannot be reached: {error}")


def answer_of(reply: Reply, name: str, words: str, response: Mapping[str, Any]) -> CallResult:
    """Return what a reply means for an effect: of a success the response, of anything else a reason for people."""
    reason = with_reason(f"{name} answered {reply.status}", words)[:REASON_MAX]
    match classify_response(reply.status, reply.headers, response):
        case Rejected():
            return Rejected(reason)
        case Throttled(after):
            return Throttled(after or PAUSE, reason)
        case Unknown():
            return Unknown(reason)
        case answer:
            return answer


def must_be(reply: Reply, kind: type[_T], name: str) -> _T:
    """Return the body of a reply that must be of a kind; anything else proves nothing."""
    if not reply.ok or not isinstance(reply.body, kind):
        raise Transient(f"{name} answered {reply.status} when it was asked what became of a call")
    return reply.body
