"""HTTP with GitHub and Jira: request headers, replies, paging and rate limits."""

import base64
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import aiohttp

from kingdom.bus.effects.http_result import retry_after
from kingdom.errors import MalformedEvent, Transient

# How long to wait at a rate limit if the server does not say when it ends. GitHub recommends this time.
PAUSE = timedelta(minutes=1)
_LONGEST_PAUSE = timedelta(hours=2)
_BODY_BYTES_MAX = 32 << 20
_NOT_MODIFIED = 304
_NEXT = re.compile(r'<([^<>]+)>\s*;[^,]*\brel="next"')


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A complete HTTP reply. `body` is None if it is not JSON. Header names are case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def ok(self) -> bool:
        """Return whether the request succeeded."""
        return 200 <= self.status < 300  # noqa: PLR2004 - the HTTP status class of success

    @property
    def is_unchanged(self) -> bool:
        """Return whether nothing changed since the last request."""
        return self.status == _NOT_MODIFIED


async def read_reply(response: aiohttp.ClientResponse) -> HttpReply:
    """Read a complete reply. A reply that is too large raises ClientPayloadError."""
    raw = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        raw += chunk
        if len(raw) > _BODY_BYTES_MAX:
            raise aiohttp.ClientPayloadError("the reply is too large")
    try:
        return HttpReply(response.status, response.headers, decode_json(bytes(raw)))
    except MalformedEvent:
        return HttpReply(response.status, response.headers, None)


def decode_json(raw: bytes) -> Any:
    """Return the JSON document in `raw`. Unpaired surrogates are allowed; texts are cleaned later."""
    try:
        return json.loads(raw.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise MalformedEvent("this is not a JSON document") from error


def github_headers(token: str = "") -> dict[str, str]:
    """Return the headers of every GitHub request. Without a token, each request adds its own authorization."""
    return {
        **(bearer(token) if token else {}),
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
        "User-Agent": "kingdom",
    }


def bearer(token: str) -> dict[str, str]:
    """Return the header that authorizes a request by a token."""
    return {"Authorization": f"Bearer {token}"}


def jira_headers(email: str, token: str) -> dict[str, str]:
    """Return the headers of every Jira request. Without an email, the token is a bearer token."""
    basic = base64.b64encode(f"{email}:{token}".encode()).decode()
    authorization = f"Basic {basic}" if email else f"Bearer {token}"
    return {"Authorization": authorization, "Accept": "application/json", "User-Agent": "kingdom"}


def next_page(reply: HttpReply, root: str) -> str | None:
    """Return the URL of the next page, or None. A URL outside `root` is refused because it would get our token."""
    found = _NEXT.search(reply.headers.get("Link", ""))
    if found and not found[1].startswith(f"{root}/"):
        raise Transient("GitHub names another server for the next page, which must not get our token")
    return found[1] if found else None


def requested_pause(headers: Mapping[str, str]) -> timedelta | None:
    """Return how long a server asks us to wait, or None."""
    asked = retry_after(headers)
    if asked is None and headers.get("X-RateLimit-Remaining") == "0":
        reset = headers.get("X-RateLimit-Reset", "")
        asked = timedelta(seconds=int(reset) - time.time()) if reset.isdecimal() and len(reset) < 12 else PAUSE  # noqa: PLR2004 - seconds since 1970
    return None if asked is None else min(max(asked, timedelta(seconds=1)), _LONGEST_PAUSE)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
