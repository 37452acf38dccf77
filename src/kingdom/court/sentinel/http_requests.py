"""Send one HTTP request and return its complete reply, or raise an error that says when to try again."""

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
_FIRST_SERVER_ERROR = 500
_REDIRECTS = frozenset({301, 302, 307, 308})
_RETRY_STATUSES = frozenset({408, 425, 429})
_FORBIDDEN = 403


@dataclass(frozen=True, slots=True)
class PollResult:
    """How many items of a poll became events, were seen before, or were dropped, and when to poll again."""

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
    gone_statuses: Collection[int] = (),
) -> HttpReply | None:
    """Send a request. Return None if the status of the reply is in `gone_statuses`."""
    try:
        async with session.request(
            method, url, headers=headers, params=params, json=document, allow_redirects=False
        ) as response:
            reply = await read_reply(response)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Transient(
            f"the request to {_shown_url(url)} failed: {clean_text(str(error), TITLE_MAX) or type(error).__name__}"
        ) from error
    if reply.status in gone_statuses:
        return None
    if reply.is_unchanged:
        return reply
    _check_status(reply.status, reply.headers, url)
    if reply.body is None:
        raise Transient(f"the reply of {_shown_url(url)} is not JSON")
    return reply


def _check_status(status: int, headers: Mapping[str, str], url: str) -> None:
    if status == _OK:
        return
    pause = requested_pause(headers)
    if status == _FORBIDDEN and pause:
        raise Transient(f"{_shown_url(url)} limits the rate of requests", after=pause)
    if status in _RETRY_STATUSES or status >= _FIRST_SERVER_ERROR:
        raise Transient(
            f"{_shown_url(url)} answered {status}", after=pause or (PAUSE if status in _RETRY_STATUSES else None)
        )
    if status in _REDIRECTS and (location := headers.get("Location", "")):
        # A transferred repository may belong to an owner whose events the realm does not accept.
        raise Misconfigured(
            f"{_shown_url(url)} answered {status}: it has moved to {_shown_url(location)}, which is not read. If its"
            " repository was renamed or transferred, use the new name, and end the followups of the old one with"
            " `kingdom followup stop`; otherwise correct the address"
        )
    raise Misconfigured(
        f"{_shown_url(url)} answered {status}: check the address, the token and the permissions of the token"
    )


def _shown_url(url: str) -> str:
    """Return the URL without its query, which may contain secrets."""
    return clean_text(url.partition("?")[0], TITLE_MAX)
