"""A webhook of anybody: every message as signed JSON, the same identifier again where an answer was lost."""

import hashlib
import hmac
from datetime import timedelta
from urllib.parse import urlsplit

import aiohttp
import msgspec

from kingdom.bus.effects.effect import (
    Absent,
    Acked,
    CallResult,
    Idempotency,
    ReconcileResult,
    Rejected,
    Target,
    Throttled,
)
from kingdom.bus.effects.http_result import classify_response
from kingdom.court.envoy.place import OneWayPlace, Post
from kingdom.court.envoy.settings import WebhookSettings

SIGNATURE = "X-Kingdom-Signature-256"
IDENTIFIER = "Idempotency-Key"
_TIMEOUT = aiohttp.ClientTimeout(total=30)
_UNREACHABLE_WAIT = timedelta(seconds=15)
_SHOWN_MAX = 200


class WebhookPlace(OneWayPlace):
    """Posts to one address; what `task_id` says in the context is its thread."""

    target = Target(name="webhook", idempotency=Idempotency.IDENTIFIER)

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """See the port."""
        self._session = aiohttp.ClientSession(timeout=_TIMEOUT)

    async def close(self) -> None:
        """See the port."""
        if self._session:
            await self._session.close()

    async def post(self, post: Post) -> CallResult:
        """See the port."""
        if self._session is None:
            raise RuntimeError("open the place before anything is posted")
        body = msgspec.json.encode({**msgspec.to_builtins(post.message), "channel": post.channel, "status": "sent"})
        headers = {
            "Content-Type": "application/json",
            IDENTIFIER: post.identifier,
            SIGNATURE: signature(self._settings.secret, body),
        }
        url = self._settings.url
        try:
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                answer = classify_response(response.status, response.headers)
                words = (await response.text(errors="replace"))[:_SHOWN_MAX]
        except aiohttp.ClientConnectorError as error:
            # Nobody listened, so nothing was said.
            return Throttled(_UNREACHABLE_WAIT, f"the webhook cannot be reached: {error}")
        if isinstance(answer, Rejected):
            return Rejected(
                f"the webhook at {urlsplit(url).netloc} refused the message: {answer.reason} {words}".strip()
            )
        return Acked({"channel": post.channel}) if isinstance(answer, Acked) else answer

    async def find(self, post: Post) -> ReconcileResult:
        """See the port."""
        # Whoever listens does an identifier only once, so it may be sent again.
        del post
        return Absent()


def signature(secret: str, body: bytes) -> str:
    """Return what proves to whoever shares the secret that a body came from here."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
