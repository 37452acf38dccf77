"""Asking a server outside: one request, an answer that is whole, or an error that says when to ask again."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import aiohttp

from kingdom.bus.http_outcome import retry_after
from kingdom.court.sentinel.untrusted import TITLE_MAX, clean, decoded
from kingdom.errors import MalformedEvent, Misconfigured, Transient

TIMEOUT = aiohttp.ClientTimeout(total=60, sock_connect=10, sock_read=30)
BODY_BYTES_MAX = 32 << 20
_OK = 200
_NOT_MODIFIED = 304
_SERVER_ERRORS = 500
_LATER = frozenset({408, 425, 429})
_FORBIDDEN = 403
# A limit without a date is over after a minute, as GitHub advises.
_PAUSE = timedelta(minutes=1)
_LONGEST_PAUSE = timedelta(hours=2)


@dataclass(frozen=True, slots=True)
class Round:
    """What one look brought, and after which time to look again."""

    received: int
    seen: int
    dropped: int
    again_after: timedelta


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer; its names of headers are small."""

    status: int
    headers: Mapping[str, str]
    body: Any = None

    @property
    def is_unchanged(self) -> bool:
        """Tell whether nothing changed since the last look."""
        return self.status == _NOT_MODIFIED


async def ask(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    params: Mapping[str, str] | None = None,
    document: Any = None,
    absent: Collection[int] = (),
) -> Reply | None:
    """Ask once; None for the statuses that are said to mean that there is nothing."""
    try:
        async with session.request(
            method, url, headers=headers, params=params, json=document, allow_redirects=False
        ) as response:
            found = {name.lower(): value for name, value in response.headers.items()}
            raw = await _whole(response)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Transient(
            f"{_place(url)} could not be asked: {clean(str(error), TITLE_MAX) or type(error).__name__}"
        ) from error
    if response.status in absent:
        return None
    _refuse_unless_fine(response.status, found, url)
    if response.status == _NOT_MODIFIED:
        return Reply(response.status, found)
    try:
        return Reply(response.status, found, decoded(raw))
    except MalformedEvent as error:
        raise Transient(f"{_place(url)} gave an answer that is no JSON") from error


def pause_of(headers: Mapping[str, str]) -> timedelta | None:
    """Return how long a server wants to be left alone, if it does."""
    asked = retry_after(headers)
    if asked is None and headers.get("x-ratelimit-remaining") == "0":
        reset = headers.get("x-ratelimit-reset", "")
        asked = timedelta(seconds=int(reset) - time.time()) if reset.isdecimal() and len(reset) < 12 else _PAUSE  # noqa: PLR2004 - seconds since 1970
    return None if asked is None else min(max(asked, timedelta(seconds=1)), _LONGEST_PAUSE)


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    raw = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        raw += chunk
        if len(raw) > BODY_BYTES_MAX:
            raise aiohttp.ClientPayloadError("the answer is too large")
    return bytes(raw)


def _refuse_unless_fine(status: int, headers: Mapping[str, str], url: str) -> None:
    if status in (_OK, _NOT_MODIFIED):
        return
    pause = pause_of(headers)
    if status == _FORBIDDEN and pause:
        raise Transient(f"{_place(url)} wants to be asked less often", after=pause)
    if status in _LATER or status >= _SERVER_ERRORS:
        raise Transient(f"{_place(url)} answered {status}", after=pause or (_PAUSE if status in _LATER else None))
    raise Misconfigured(f"{_place(url)} answered {status}: check its address, the token and what the token may do")


def _place(url: str) -> str:
    """Return where was asked, without what may be secret."""
    return clean(url.partition("?")[0], TITLE_MAX)
