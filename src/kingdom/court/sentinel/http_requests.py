"""Asking a server outside: one request, an answer that is whole, or an error that says when to ask again."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import aiohttp

from kingdom.court.remote_http import PAUSE, HttpReply, read_reply, requested_pause
from kingdom.court.sentinel.untrusted import TITLE_MAX, clean_text
from kingdom.errors import Misconfigured, Transient

TIMEOUT = aiohttp.ClientTimeout(total=60, sock_connect=10, sock_read=30)
_OK = 200
_SERVER_ERRORS = 500
_LATER = frozenset({408, 425, 429})
_FORBIDDEN = 403


@dataclass(frozen=True, slots=True)
class PollResult:
    """What one look brought, and after which time to look again."""

    received: int
    seen: int
    dropped: int
    again_after: timedelta


async def send_request(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    params: Mapping[str, str] | None = None,
    document: Any = None,
    absent: Collection[int] = (),
) -> HttpReply | None:
    """Ask once; None for the statuses that are said to mean that there is nothing."""
    try:
        async with session.request(
            method, url, headers=headers, params=params, json=document, allow_redirects=False
        ) as response:
            reply = await read_reply(response)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Transient(
            f"{_shown_url(url)} could not be asked: {clean_text(str(error), TITLE_MAX) or type(error).__name__}"
        ) from error
    if reply.status in absent:
        return None
    if reply.is_unchanged:
        return reply
    _check_status(reply.status, reply.headers, url)
    if reply.body is None:
        raise Transient(f"{_shown_url(url)} gave an answer that is no JSON")
    return reply


def _check_status(status: int, headers: Mapping[str, str], url: str) -> None:
    if status == _OK:
        return
    pause = requested_pause(headers)
    if status == _FORBIDDEN and pause:
        raise Transient(f"{_shown_url(url)} wants to be asked less often", after=pause)
    if status in _LATER or status >= _SERVER_ERRORS:
        raise Transient(f"{_shown_url(url)} answered {status}", after=pause or (PAUSE if status in _LATER else None))
    raise Misconfigured(f"{_shown_url(url)} answered {status}: check its address, the token and what the token may do")


def _shown_url(url: str) -> str:
    """Return where was asked, without what may be secret."""
    return clean_text(url.partition("?")[0], TITLE_MAX)
