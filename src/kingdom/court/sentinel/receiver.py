"""Receive GitHub webhooks over HTTP. Signatures are checked first; replies are sent after the commit."""

import asyncio
import hashlib
import hmac
import logging
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import structlog
from aiohttp import web

from kingdom.bus.port import Bus, Transaction
from kingdom.clock import utc_now
from kingdom.court.remote_http import decode_json
from kingdom.court.sentinel.filters import why_filtered
from kingdom.court.sentinel.followed_pulls import hint_pull_requests, hinted_pulls
from kingdom.court.sentinel.github import parse_webhook
from kingdom.court.sentinel.github_activity import DroppedActivity
from kingdom.court.sentinel.records import IntakeResult, accept_activity
from kingdom.court.sentinel.settings import GitHubSettings, GitHubWebhookSettings
from kingdom.errors import KingdomError, MalformedEvent, Misconfigured
from kingdom.workflow.records import run_transaction

PATH = "/webhooks/github"
DELIVERY = "delivery"
_DELIVERY_KEPT = timedelta(days=30)
_SIGNATURE = re.compile(r"sha256=[0-9a-f]{64}")
_DELIVERY_ID = re.compile(r"[A-Za-z0-9-]{1,100}")
_EVENT = re.compile(r"[a-z_]{1,60}")
_PING = "ping"
# Unfinished bodies together take at most this many times the largest allowed body.
_BODIES_MAX = 2
# GitHub needs only a few connections, and each connection costs memory and a file descriptor.
_CONNECTIONS_MAX = 100
_LINGER_SECONDS = 0.5
_log = structlog.get_logger("kingdom.court.sentinel")


class WebhookReceiver:
    """An HTTP server for GitHub webhooks. `url` is set once it has started.

    Strangers can use only a bounded amount of memory. At the limit, the oldest unfinished request is dropped. GitHub's
    own requests finish quickly, so this mostly hits clients that block connections.
    """

    def __init__(
        self,
        bus: Bus,
        settings: GitHubSettings,
        clock: Callable[[], datetime] = utc_now,
        on_hint: Callable[[], None] = lambda: None,
    ) -> None:
        if settings.webhook is None or not settings.webhook.secrets:
            raise Misconfigured("webhooks need a secret: set github.webhook.secrets, or remove webhook to poll only")
        self._bus = bus
        self._settings = settings
        self._webhook: GitHubWebhookSettings = settings.webhook
        self._clock = clock
        self._on_hint = on_hint
        application = web.Application()
        application.router.add_post(PATH, self._receive)
        application.router.add_get("/healthz", self._healthy)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=self._webhook.store_seconds,
            # Requests of strangers must not fill our logs.
            logger=_silent_logger(),
            # The signature covers the raw bytes, and decompression could exhaust memory.
            auto_decompress=False,
            # The rest of a refused request is read and dropped for this long, so that the client gets the reply.
            lingering_time=_LINGER_SECONDS,
        )
        self._listener: asyncio.Server | None = None
        # The number of received bytes of each unfinished body, the oldest body first.
        self._reading: dict[asyncio.Timeout, int] = {}
        self.url = ""

    async def start(self) -> None:
        """Start listening."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._connect, self._webhook.host, self._webhook.port)
        host, port = self._listener.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        _log.info("waiting for webhooks", url=self.url + PATH)

    async def stop(self) -> None:
        """Stop listening, after replying to received requests."""
        if self._listener:
            self._listener.close()
        await self._runner.cleanup()

    def _connect(self) -> asyncio.Protocol:
        server = self._runner.server
        if server is None:
            raise RuntimeError("call start() before connections are accepted")
        connected = server.connections
        for oldest in connected[: max(0, len(connected) + 1 - _CONNECTIONS_MAX)]:
            oldest.force_close()
        return server()

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _receive(self, request: web.Request) -> web.Response:
        try:
            return await self._check_and_store(request)
        except web.HTTPRequestEntityTooLarge:
            return _response(413, "too large")
        except MalformedEvent as error:
            _log.warning("refused a webhook that cannot be read", reason=str(error))
            return _response(400, "not understood")
        except TimeoutError:
            return _response(408, "too slow")
        except KingdomError as error:
            _log.error("cannot store a webhook: redeliver it if no poll finds it", reason=str(error))
            return _response(503, "try again later")
        except (ConnectionError, web.RequestPayloadError):
            return _response(400, "not understood")
        except Exception:  # noqa: BLE001 - a bug must not reveal details or stop the server
            _log.exception("a webhook failed")
            return _response(500, "failed")

    async def _check_and_store(self, request: web.Request) -> web.Response:
        if not _SIGNATURE.fullmatch(request.headers.get("X-Hub-Signature-256", "")):
            return _response(401, "not signed")
        if request.content_type != "application/json":
            return _response(415, "send application/json")
        if (request.content_length or 0) > self._webhook.body_bytes_max:
            return _response(413, "too large")
        raw = await self._read(request)
        if not self._is_signed(raw, request.headers["X-Hub-Signature-256"]):
            return _response(401, "not signed")
        event, delivery = request.headers.get("X-GitHub-Event", ""), request.headers.get("X-GitHub-Delivery", "")
        if not _EVENT.fullmatch(event) or not _DELIVERY_ID.fullmatch(delivery):
            return _response(400, "not understood")
        document = decode_json(raw)
        if not isinstance(document, dict):
            return _response(400, "not understood")
        if event == _PING:
            return _response(200, "pong")
        return await self._store(event, delivery, document)

    async def _read(self, request: web.Request) -> bytes:
        """Return the body of a request. An unfinished body may be dropped to make room for others."""
        body = bytearray()
        async with asyncio.timeout(self._webhook.body_seconds) as limit:
            try:
                async for part in request.content.iter_any():
                    body += part
                    if len(body) > self._webhook.body_bytes_max:
                        raise web.HTTPRequestEntityTooLarge(self._webhook.body_bytes_max, len(body))
                    self._reading[limit] = len(body)
                    self._make_room()
            finally:
                self._reading.pop(limit, None)
        return bytes(body)

    def _make_room(self) -> None:
        """Drop the oldest unfinished bodies while all bodies together are too large."""
        while sum(self._reading.values()) > _BODIES_MAX * self._webhook.body_bytes_max:
            oldest = next(iter(self._reading))
            del self._reading[oldest]
            oldest.reschedule(asyncio.get_running_loop().time())

    def _is_signed(self, raw: bytes, signature: str) -> bool:
        """Return whether a signature belongs to one of the secrets. All are tried, so that timing reveals nothing."""
        fits = [
            hmac.compare_digest(f"sha256={hmac.new(secret.encode(), raw, hashlib.sha256).hexdigest()}", signature)
            for secret in self._webhook.secrets
        ]
        return any(fits)

    async def _store(self, event: str, delivery: str, document: Mapping[str, Any]) -> web.Response:
        now = self._clock()
        activity = parse_webhook(event, document, self._settings.logins, now)
        hint = hinted_pulls(event, document)
        if isinstance(activity, DroppedActivity) and hint is None:
            return _response(202, IntakeResult.DROPPED)
        hinted = 0

        async def act(transaction: Transaction) -> IntakeResult:
            nonlocal hinted
            hinted = await hint_pull_requests(transaction, *hint, now) if hint else 0
            if isinstance(activity, DroppedActivity):
                return IntakeResult.DROPPED
            if not await transaction.once(DELIVERY, delivery, _DELIVERY_KEPT):
                return IntakeResult.SEEN
            filter_reason = why_filtered(activity, self._settings)
            return await accept_activity(transaction, activity, filter_reason, self._settings.seen_kept)

        try:
            async with asyncio.timeout(self._webhook.store_seconds):
                taken = await run_transaction(self._bus, act)
        except TimeoutError:
            _log.error("cannot store a webhook: redeliver it if no poll finds it", reason="the store takes too long")
            return _response(503, "try again later")
        if hinted or document.get("action") == "labeled":
            self._on_hint()
        return _response(202, taken)


def _silent_logger() -> logging.Logger:
    logger = logging.getLogger("kingdom.court.sentinel.http")
    logger.setLevel(logging.CRITICAL + 1)
    return logger


def _response(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")
