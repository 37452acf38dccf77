"""Handing a request of an agent on to the model of a vendor, with the key, and the answer back as it comes."""

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
from kingdom.soldiers.sandbox.reaching_out import reaching_out
from kingdom.soldiers.sandbox.usage import BYTES_PER_TOKEN
from kingdom.soldiers.sandbox.vendors import (
    PAYMENT_REQUIRED,
    Upstream,
    allows,
    answered_with,
    asked_by,
    asked_model,
    asked_with,
    is_charged,
    is_streamed,
    most_output,
    refused_payment,
    telling_usage,
)

_BODY_BYTES_MAX = 64 << 20
_MARKS_MAX = 4_000_000
_AT_ONCE = 2
# They outlive the connection of an agent that does not wait for them.
_WHOLE_ANSWERS_MAX = 32
_LAST_ANSWERS_SECONDS = 1
_ERROR_BYTES_MAX = 1 << 20
_REFUSALS_TOLD = 100
_SHOWN = 200
_REDIRECT, _BAD, _UNAUTHORIZED, _FORBIDDEN, _BAD_GATEWAY = 300, 400, 401, 403, 502
_HIDDEN = b"[the key of the house]"
_SPENT = "the budget of this work is spent, so its model is not asked any more: end your turn"
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError)
_log = structlog.get_logger("kingdom.soldiers.gate")


@dataclass(frozen=True, slots=True)
class _Question:
    """What goes on to a vendor, or the `reason` why it does not; `most` is what the answer uses up at most."""

    body: bytes | None = None
    reason: str = ""
    model: str = ""
    is_streamed: bool = False
    most: Tokens = field(default_factory=Tokens)


class Forwarding:
    """Hands requests on through a client; what is not allowed is refused and told in the log, without secrets."""

    def __init__(self, client: aiohttp.ClientSession, upstreams: Sequence[Upstream], meter: Meter) -> None:
        self.client = client
        self._meter = meter
        self.refused = 0
        self._unreached = 0
        self._upstreams = upstreams
        self._looking = asyncio.Semaphore(_AT_ONCE)
        self._whole_answers: set[asyncio.Task[web.StreamResponse]] = set()

    async def close(self) -> None:
        """End what is under way; answers that were asked for as a whole have a moment to come."""
        if self._whole_answers:
            _, late = await asyncio.wait(self._whole_answers, timeout=_LAST_ANSWERS_SECONDS)
            for answering in late:
                answering.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self.client.close()

    async def answer(self, request: web.Request, path: str) -> web.StreamResponse:
        """Answer a request for a path."""
        if request.method in {"GET", "HEAD"} and path in {"", "/"}:
            # Agents look whether somebody is there at all.
            return web.Response()
        upstream = next((each for each in self._upstreams if allows(each.vendor, request.method, path)), None)
        if upstream is None:
            return self._refuse(request, path, "no model is asked like this")
        question = _Question()
        if request.method == "POST":
            try:
                question = await self._looked_at(request, path)
            except _UNREADABLE as error:
                return _error(_BAD, f"the body is no JSON: {error}")
            if question.reason:
                return self._refuse(request, path, question.reason)
        return await self._metered(request, path, upstream, question)

    async def _looked_at(self, request: web.Request, path: str) -> _Question:
        """Return the body as it may be sent, or why it may not be."""
        # Few at a time and beside the loop: what an agent sends must cost the house neither its memory nor its time.
        async with self._looking:
            body = await read(request.content, _BODY_BYTES_MAX)
            return await asyncio.to_thread(_look_at, body, path)

    async def _metered(
        self, request: web.Request, path: str, upstream: Upstream, question: _Question
    ) -> web.StreamResponse:
        if not is_charged(request.method, path):
            return await self._forward(request, path, upstream, question, None)
        while not question.is_streamed and len(self._whole_answers) >= _WHOLE_ANSWERS_MAX:
            await asyncio.wait(self._whole_answers, return_when=asyncio.FIRST_COMPLETED)
        call = await self._meter.admit(upstream, question.model, question.most)
        if call is None:
            return web.json_response(refused_payment(upstream.vendor, _SPENT), status=PAYMENT_REQUIRED)
        if question.is_streamed:
            with call:
                return await self._forward(request, path, upstream, question, call)
        answering = asyncio.create_task(self._whole_answer(request, path, upstream, question, call))
        self._whole_answers.add(answering)
        answering.add_done_callback(self._whole_answers.discard)
        # The vendor writes and charges the whole of it, also where the agent does not wait for it.
        return await asyncio.shield(answering)

    async def _whole_answer(
        self, request: web.Request, path: str, upstream: Upstream, question: _Question, call: MeteredCall
    ) -> web.StreamResponse:
        with call:
            try:
                return await self._forward(request, path, upstream, question, call)
            except asyncio.CancelledError:
                call.abandon()
                raise

    async def _forward(
        self, request: web.Request, path: str, upstream: Upstream, question: _Question, call: MeteredCall | None
    ) -> web.StreamResponse:
        try:
            async with self._asking(request, path, upstream, question.body) as answer:
                if answer.status < _REDIRECT:
                    return await _hand_on(request, answer, question, call)
                if call is not None:
                    call.refuse()
                return await _failure(answer, upstream)
        except (aiohttp.ClientError, TimeoutError) as error:
            if call is not None and isinstance(error, aiohttp.ClientConnectorError):
                call.refuse()
            self._unreached += 1
            if self._unreached <= _REFUSALS_TOLD:
                _log.warning("the model cannot be reached", url=upstream.url, error=type(error).__name__)
            return _error(_BAD_GATEWAY, f"the model cannot be reached: {type(error).__name__}")

    def _asking(
        self, request: web.Request, path: str, upstream: Upstream, body: bytes | None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        parameters = {name: value for name, value in request.rel_url.query.items() if asked_by(name)}
        base = upstream.url.rstrip("/").removesuffix("/v1")
        headers = {name: value for name, value in request.headers.items() if asked_with(name)}
        address = URL(base + path, encoded=True).with_query(parameters)
        return self.client.request(
            request.method,
            address,
            # Nothing compressed: what an error quotes must be readable here.
            headers={**headers, **upstream.credentials, "accept-encoding": "identity"},
            data=None if body is None else BytesIO(body),
            allow_redirects=False,
            skip_auto_headers=("User-Agent",),
        )

    def _refuse(self, request: web.Request, path: str, reason: str) -> web.Response:
        self.refused += 1
        if self.refused <= _REFUSALS_TOLD:
            _log.warning(
                "an agent was refused", method=request.method[:_SHOWN], path=path[:_SHOWN], reason=reason[:_SHOWN]
            )
        return _error(_FORBIDDEN, f"this is not allowed here: {reason}")


async def read(content: aiohttp.StreamReader, most: int) -> bytes:
    """Return a whole body, which has so many bytes at most."""
    body = bytearray()
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > most:
            raise web.HTTPRequestEntityTooLarge(most, len(body))
    return bytes(body)


def _look_at(body: bytes, path: str) -> _Question:
    if sum(body.count(mark) for mark in b",[{") > _MARKS_MAX:
        return _Question(reason="it has more values than any prompt")
    document = msgspec.json.decode(body)
    if found := reaching_out(document):
        return _Question(reason=f"the vendor would fetch what the agent names: {found}")
    if not isinstance(document, dict):
        return _Question(body=msgspec.json.encode(document))
    if document.get("background"):
        return _Question(reason="nobody would know what an answer in the background costs")
    # Written anew, so that what was looked at is what is sent, also where a name stands twice.
    sent = msgspec.json.encode(telling_usage(path, document))
    most = Tokens(input=len(sent) // BYTES_PER_TOKEN, output=most_output(document))
    return _Question(body=sent, model=asked_model(path, document), is_streamed=is_streamed(path, document), most=most)


async def _hand_on(
    request: web.Request, answer: aiohttp.ClientResponse, question: _Question, call: MeteredCall | None
) -> web.StreamResponse:
    """Hand an answer on as it comes; one that is not streamed is read to its end, also where the agent has left."""
    leaving = nullcontext() if question.is_streamed else suppress(ConnectionError)
    response = web.StreamResponse(status=answer.status, headers=_headers(answer))
    with leaving:
        await response.prepare(request)
    try:
        async for chunk in answer.content.iter_any():
            if call is not None:
                # Charged before the agent can act upon it.
                call.feed(chunk)
            with leaving:
                await response.write(chunk)
    except (aiohttp.ClientError, TimeoutError):
        # Half an answer must not look like a whole one.
        if request.transport is not None:
            request.transport.abort()
    else:
        if call is not None:
            call.finish()
        with leaving:
            await response.write_eof()
    return response


async def _failure(answer: aiohttp.ClientResponse, upstream: Upstream) -> web.Response:
    """Return an error of the vendor, without the key, which some vendors quote."""
    if answer.status < _BAD:
        return _error(_BAD_GATEWAY, "the model has moved: change its address in the settings of the house")
    if answer.status == _UNAUTHORIZED:
        return _error(_UNAUTHORIZED, "the vendor does not accept the key of the house", "authentication_error")
    try:
        words = await read(answer.content, _ERROR_BYTES_MAX)
    except web.HTTPRequestEntityTooLarge:
        return _error(answer.status, "the vendor says more about its error than anybody would read", "api_error")
    return web.Response(
        status=answer.status, headers=_headers(answer), body=words.replace(upstream.key.encode(), _HIDDEN)
    )


def _headers(answer: aiohttp.ClientResponse) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if answered_with(name)}


def _error(status: int, message: str, kind: str = "permission_error") -> web.Response:
    document: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": message}}
    return web.json_response(document, status=status)
