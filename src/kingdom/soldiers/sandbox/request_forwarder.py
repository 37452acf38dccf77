"""Forward requests of an agent to the model of a vendor with the key added, and forward answers as they arrive."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import aiohttp
import msgspec
import structlog
from aiohttp import web
from yarl import URL

from kingdom.soldiers.sandbox.meter import Meter, MeteredCall
from kingdom.soldiers.sandbox.prices import Tokens
from kingdom.soldiers.sandbox.remote_fetch import find_remote_fetch
from kingdom.soldiers.sandbox.usage import BYTES_PER_TOKEN
from kingdom.soldiers.sandbox.vendors import (
    PAYMENT_REQUIRED,
    Upstream,
    forwards_parameter,
    forwards_request_header,
    forwards_response_header,
    is_allowed_request,
    is_charged,
    is_streamed,
    max_output_tokens,
    payment_error,
    requested_model,
    with_usage_reporting,
)
from kingdom.soldiers.unreadable_json import UNREADABLE_JSON

_BODY_BYTES_MAX = 64 << 20
_JSON_VALUES_MAX = 4_000_000
_CHECKS_AT_ONCE = 2
# Unstreamed answers are read to the end even after the agent disconnects, so their number is limited.
_UNSTREAMED_MAX = 32
_CLOSE_SECONDS = 1
_ERROR_BYTES_MAX = 1 << 20
_LOGGED_MAX = 100
_LOGGED_CHARACTERS = 200
_REDIRECT, _BAD, _UNAUTHORIZED, _FORBIDDEN, _BAD_GATEWAY = 300, 400, 401, 403, 502
_REDACTED_KEY = b"[the model key]"
_BUDGET_SPENT = "the budget of this work is spent, so the model is no longer available: end your turn"
_log = structlog.get_logger("kingdom.soldiers.model_proxy")


@dataclass(frozen=True, slots=True)
class _ModelRequest:
    """A checked request, or the `reason` why it is refused; `maximum` is the highest possible usage."""

    body: bytes | None = None
    reason: str = ""
    model: str = ""
    is_streamed: bool = False
    maximum: Tokens = field(default_factory=Tokens)


class RequestForwarder:
    """Forwards allowed requests. It refuses all other requests, and logs the refusals without secrets."""

    def __init__(self, client: aiohttp.ClientSession, upstreams: Sequence[Upstream], meter: Meter) -> None:
        self.client = client
        self._meter = meter
        self.refused = 0
        self._unreachable = 0
        self._upstreams = upstreams
        self._checking = asyncio.Semaphore(_CHECKS_AT_ONCE)
        self._unstreamed: set[asyncio.Task[web.StreamResponse]] = set()

    async def close(self) -> None:
        """Close the client; unstreamed answers get a moment to finish first."""
        if self._unstreamed:
            _, late = await asyncio.wait(self._unstreamed, timeout=_CLOSE_SECONDS)
            for answering in late:
                answering.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self.client.close()

    async def answer(self, request: web.Request, path: str) -> web.StreamResponse:
        """Return the response to a request; `path` is without the secret prefix."""
        if request.method in {"GET", "HEAD"} and path in {"", "/"}:
            # Agents probe whether the server is reachable.
            return web.Response()
        upstream = next(
            (each for each in self._upstreams if is_allowed_request(each.vendor, request.method, path)), None
        )
        if upstream is None:
            return self._refuse(request, path, "this is not a call of the model")
        model_request = _ModelRequest()
        if request.method == "POST":
            try:
                model_request = await self._check(request, path)
            except UNREADABLE_JSON as error:
                return _error(_BAD, f"the body is not JSON: {error}")
            if model_request.reason:
                return self._refuse(request, path, model_request.reason)
        return await self._forward_metered(request, path, upstream, model_request)

    async def _check(self, request: web.Request, path: str) -> _ModelRequest:
        """Return the request as it may be sent, or the reason why it may not."""
        # Bodies are checked in a thread, so they do not block the event loop, and few at a time, to save memory.
        async with self._checking:
            body = await read_body(request.content, _BODY_BYTES_MAX)
            return await asyncio.to_thread(_check_body, body, path)

    async def _forward_metered(
        self, request: web.Request, path: str, upstream: Upstream, model_request: _ModelRequest
    ) -> web.StreamResponse:
        if not is_charged(request.method, path):
            return await self._forward(request, path, upstream, model_request, None)
        while not model_request.is_streamed and len(self._unstreamed) >= _UNSTREAMED_MAX:
            await asyncio.wait(self._unstreamed, return_when=asyncio.FIRST_COMPLETED)
        call = await self._meter.admit(upstream, model_request.model, model_request.maximum)
        if call is None:
            return web.json_response(payment_error(upstream.vendor, _BUDGET_SPENT), status=PAYMENT_REQUIRED)
        if model_request.is_streamed:
            with call:
                return await self._forward(request, path, upstream, model_request, call)
        answering = asyncio.create_task(self._forward_unstreamed(request, path, upstream, model_request, call))
        self._unstreamed.add(answering)
        answering.add_done_callback(self._unstreamed.discard)
        # The task is shielded, because the vendor charges for the whole answer even if the agent disconnects.
        return await asyncio.shield(answering)

    async def _forward_unstreamed(
        self, request: web.Request, path: str, upstream: Upstream, model_request: _ModelRequest, call: MeteredCall
    ) -> web.StreamResponse:
        with call:
            try:
                return await self._forward(request, path, upstream, model_request, call)
            except asyncio.CancelledError:
                call.abandon()
                raise

    async def _forward(
        self,
        request: web.Request,
        path: str,
        upstream: Upstream,
        model_request: _ModelRequest,
        call: MeteredCall | None,
    ) -> web.StreamResponse:
        try:
            async with self._send(request, path, upstream, model_request.body) as answer:
                if answer.status < _REDIRECT:
                    return await _relay(request, answer, model_request, call)
                if call is not None:
                    call.refuse()
                return await _relay_error(answer, upstream)
        except (aiohttp.ClientError, TimeoutError) as error:
            if call is not None and isinstance(error, aiohttp.ClientConnectorError):
                call.refuse()
            self._unreachable += 1
            if self._unreachable <= _LOGGED_MAX:
                _log.warning("the model cannot be reached", url=upstream.url, error=type(error).__name__)
            return _error(_BAD_GATEWAY, f"the model cannot be reached: {type(error).__name__}")

    def _send(
        self, request: web.Request, path: str, upstream: Upstream, body: bytes | None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        parameters = {name: value for name, value in request.rel_url.query.items() if forwards_parameter(name)}
        base = upstream.url.rstrip("/").removesuffix("/v1")
        headers = {name: value for name, value in request.headers.items() if forwards_request_header(name)}
        address = URL(base + path, encoded=True).with_query(parameters)
        return self.client.request(
            request.method,
            address,
            # Ask for uncompressed answers, so the key can be removed from errors that quote it.
            headers={**headers, **upstream.credentials, "accept-encoding": "identity"},
            data=None if body is None else BytesIO(body),
            allow_redirects=False,
            skip_auto_headers=("User-Agent",),
        )

    def _refuse(self, request: web.Request, path: str, reason: str) -> web.Response:
        self.refused += 1
        if self.refused <= _LOGGED_MAX:
            _log.warning(
                "refused a request of an agent",
                method=request.method[:_LOGGED_CHARACTERS],
                path=path[:_LOGGED_CHARACTERS],
                reason=reason[:_LOGGED_CHARACTERS],
            )
        return _error(_FORBIDDEN, f"this is not allowed here: {reason}")


async def read_body(content: aiohttp.StreamReader, maximum: int) -> bytes:
    """Return a whole body of at most `maximum` bytes."""
    body = bytearray()
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > maximum:
            raise web.HTTPRequestEntityTooLarge(maximum, len(body))
    return bytes(body)


def _check_body(body: bytes, path: str) -> _ModelRequest:
    if sum(body.count(mark) for mark in b",[{") > _JSON_VALUES_MAX:
        return _ModelRequest(reason="it has more values than a prompt can have")
    document = msgspec.json.decode(body)
    if found := find_remote_fetch(document):
        return _ModelRequest(reason=f"it makes the vendor fetch an address: {found}")
    if not isinstance(document, dict):
        return _ModelRequest(body=msgspec.json.encode(document))
    if document.get("background"):
        return _ModelRequest(reason="the cost of an answer in the background cannot be measured")
    # The body is encoded again to drop duplicate keys: the vendor could use another value than the one checked here.
    sent = msgspec.json.encode(with_usage_reporting(path, document))
    maximum = Tokens(input=len(sent) // BYTES_PER_TOKEN, output=max_output_tokens(document))
    return _ModelRequest(
        body=sent, model=requested_model(path, document), is_streamed=is_streamed(path, document), maximum=maximum
    )


async def _relay(
    request: web.Request, answer: aiohttp.ClientResponse, model_request: _ModelRequest, call: MeteredCall | None
) -> web.StreamResponse:
    """Forward an answer as it arrives. An unstreamed answer is read to its end even if the agent has disconnected."""
    ignore_disconnect = nullcontext() if model_request.is_streamed else suppress(ConnectionError)
    response = web.StreamResponse(status=answer.status, headers=_headers(answer))
    with ignore_disconnect:
        await response.prepare(request)
    try:
        async for chunk in answer.content.iter_any():
            if call is not None:
                # Charge the answer before the agent can act on it.
                call.feed(chunk)
            with ignore_disconnect:
                await response.write(chunk)
    except (aiohttp.ClientError, TimeoutError):
        # A partial answer must not look complete.
        if request.transport is not None:
            request.transport.abort()
    else:
        if call is not None:
            call.finish()
        with ignore_disconnect:
            await response.write_eof()
    return response


async def _relay_error(answer: aiohttp.ClientResponse, upstream: Upstream) -> web.Response:
    """Return an error of the vendor. The key is removed from it, because some vendors quote the key."""
    if answer.status < _BAD:
        return _error(
            _BAD_GATEWAY, "the vendor redirects to another address: change soldiers.model.url in kingdom.yaml"
        )
    if answer.status == _UNAUTHORIZED:
        return _error(
            _UNAUTHORIZED,
            "the vendor does not accept the key that Kingdom uses: check soldiers.model.key in kingdom.yaml, or, if it"
            " is not set there, the environment variable with the key",
            "authentication_error",
        )
    try:
        message = await read_body(answer.content, _ERROR_BYTES_MAX)
    except web.HTTPRequestEntityTooLarge:
        return _error(answer.status, "the error message of the vendor is too long to forward", "api_error")
    return web.Response(
        status=answer.status, headers=_headers(answer), body=message.replace(upstream.key.encode(), _REDACTED_KEY)
    )


def _headers(answer: aiohttp.ClientResponse) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if forwards_response_header(name)}


def _error(status: int, message: str, kind: str = "permission_error") -> web.Response:
    document: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": message}}
    return web.json_response(document, status=status)
