"""The messenger for a webhook: posts each message as signed JSON.

A message that is sent again because it may not have arrived keeps its identifier.
"""

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
from kingdom.court.envoy.messenger import OneWayMessenger, OutgoingMessage
from kingdom.court.envoy.settings import EnvoyWebhookSettings

SIGNATURE = "X-Kingdom-Signature-256"
IDENTIFIER = "Idempotency-Key"
_TIMEOUT = aiohttp.ClientTimeout(total=30)
_UNREACHABLE_WAIT = timedelta(seconds=15)
# How many characters of a reply an error shows.
_SHOWN_MAX = 200


class WebhookMessenger(OneWayMessenger):
    """Posts to one URL. Messages with the same `task_id` in their context belong to one thread."""

    target = Target(name="webhook", idempotency=Idempotency.IDENTIFIER)

    def __init__(self, settings: EnvoyWebhookSettings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """See `Messenger.open`."""
        self._session = aiohttp.ClientSession(timeout=_TIMEOUT)

    async def close(self) -> None:
        """See `Messenger.close`."""
        if self._session:
            await self._session.close()

    async def post(self, post: OutgoingMessage) -> CallResult:
        """See `Messenger.post`."""
        if self._session is None:
            raise RuntimeError("call open() before posting")
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
                reply = (await response.text(errors="replace"))[:_SHOWN_MAX]
        except aiohttp.ClientConnectorError as error:
            # There was no connection, so nothing was sent.
            return Throttled(_UNREACHABLE_WAIT, f"cannot connect to the webhook: {error}")
        if isinstance(answer, Rejected):
            return Rejected(
                f"the webhook at {urlsplit(url).netloc} refused the message: {answer.reason} {reply}".strip()
            )
        return Acked({"channel": post.channel}) if isinstance(answer, Acked) else answer

    async def find(self, post: OutgoingMessage) -> ReconcileResult:
        """See `Messenger.find`."""
        # The receiver ignores a repeated identifier, so sending again is safe.
        del post
        return Absent()


def signature(secret: str, body: bytes) -> str:
    """Return the signature of a body, which a receiver with the same secret can check."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
