"""GitHub and Jira as all of the court speaks to them: who we are, and what an answer says."""

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

# A limit without a date is over after a minute, as GitHub advises.
PAUSE = timedelta(minutes=1)
_LONGEST_PAUSE = timedelta(hours=2)
_BODY_BYTES_MAX = 32 << 20
_NOT_MODIFIED = 304
_NEXT = re.compile(r'<([^<>]+)>\s*;[^,]*\brel="next"')


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer; `body` is None where it is no JSON, and the names of headers have no case."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def ok(self) -> bool:
        """Tell whether it did what was asked."""
        return 200 <= self.status < 300  # noqa: PLR2004 - the class of success in HTTP itself

    @property
    def is_unchanged(self) -> bool:
        """Tell whether nothing changed since the last look."""
        return self.status == _NOT_MODIFIED


async def reply_of(response: aiohttp.ClientResponse) -> Reply:
    """Read a whole answer; one that is too large counts as broken off."""
    raw = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        raw += chunk
        if len(raw) > _BODY_BYTES_MAX:
            raise aiohttp.ClientPayloadError("the answer is too large")
    try:
        return Reply(response.status, response.headers, decoded(bytes(raw)))
    except MalformedEvent:
        return Reply(response.status, response.headers, None)


def decoded(raw: bytes) -> Any:
    """Return the JSON document that bytes hold; half a surrogate is let through, since texts are cleaned anyway."""
    try:
        return json.loads(raw.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise MalformedEvent("this is no JSON document") from error


def github_headers(token: str) -> dict[str, str]:
    """Return what GitHub wants to know with every request."""
    return {
        "Authorization": f"Bearer {token}",
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
        "User-Agent": "kingdom",
    }


def jira_headers(email: str, token: str) -> dict[str, str]:
    """Return what Jira wants to know with every request; without an email the token is a bearer."""
    basic = base64.b64encode(f"{email}:{token}".encode()).decode()
    authorization = f"Basic {basic}" if email else f"Bearer {token}"
    return {"Authorization": authorization, "Accept": "application/json", "User-Agent": "kingdom"}


def next_page(reply: Reply, root: str) -> str | None:
    """Return where a list goes on, if it does; nobody else than who was asked under `root` gets our token."""
    found = _NEXT.search(reply.headers.get("Link", ""))
    if found and not found[1].startswith(f"{root}/"):
        raise Transient("GitHub sends us to another server for the next page, which does not get our token")
    return found[1] if found else None


def pause_of(headers: Mapping[str, str]) -> timedelta | None:
    """Return how long a server wants to be left alone, if it does."""
    asked = retry_after(headers)
    if asked is None and headers.get("X-RateLimit-Remaining") == "0":
        reset = headers.get("X-RateLimit-Reset", "")
        asked = timedelta(seconds=int(reset) - time.time()) if reset.isdecimal() and len(reset) < 12 else PAUSE  # noqa: PLR2004 - seconds since 1970
    return None if asked is None else min(max(asked, timedelta(seconds=1)), _LONGEST_PAUSE)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
