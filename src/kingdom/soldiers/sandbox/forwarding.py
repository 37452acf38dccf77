"""Handing a request of an agent on to the model of a vendor, with the key, and the answer back as it comes."""

import asyncio
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import aiohttp
import msgspec
import structlog
from aiohttp import web
from yarl import URL

from kingdom.soldiers.sandbox.reaching_out import reaching_out
from kingdom.soldiers.sandbox.vendors import Upstream, allows, answered_with, asked_by, asked_with

_BODY_BYTES_MAX = 64 << 20
_MARKS_MAX = 4_000_000
_AT_ONCE = 2
_ERROR_BYTES_MAX = 1 << 20
_REFUSALS_TOLD = 100
_SHOWN = 200
_REDIRECT, _BAD, _UNAUTHORIZED, _FORBIDDEN, _BAD_GATEWAY = 300, 400, 401, 403, 502
_HIDDEN = b"[the key of the house]"
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError)
_log = structlog.get_logger("kingdom.soldiers.gate")


class Forwarding:
    """Hands requests on through a client; what is not allowed is refused and told in the log, without secrets."""

    def __init__(self, client: aiohttp.ClientSession, upstreams: Sequence[Upstream]) -> None:
        self.client = client
        self.refused = 0
        self._unreached = 0
        self._upstreams = upstreams
        self._looking = asyncio.Semaphore(_AT_ONCE)

    async def answer(self, request: web.Request, path: str) -> web.StreamResponse:
        """Answer a request for a path."""
        if request.method in {"GET", "HEAD"} and path in {"", "/"}:
            # Agents look whether somebody is there at all.
            return web.Response()
        upstream = next((each for each in self._upstreams if allows(each.vendor, request.method, path)), None)
        if upstream is None:
            return self._refuse(request, path, "no model is asked like this")
        body = None
        if request.method == "POST":
            try:
                body, reason = await self._looked_at(request)
            except _UNREADABLE as error:
                return _error(_BAD, f"the body is no JSON: {error}")
            if reason:
                return self._refuse(request, path, reason)
        try:
            return await self._forward(request, path, upstream, body)
        except (aiohttp.ClientError, TimeoutError) as error:
            self._unreached += 1
            if self._unreached <= _REFUSALS_TOLD:
                _log.warning("the model cannot be reached", url=upstream.url, error=type(error).__name__)
            return _error(_BAD_GATEWAY, f"the model cannot be reached: {type(error).__name__}")

    async def _looked_at(self, request: web.Request) -> tuple[bytes, str | None]:
        """Return the body as it may be sent, or why it may not be."""
        # Few at a time and beside the loop: what an agent sends must cost the house neither its memory nor its time.
        async with self._looking:
            body = await read(request.content, _BODY_BYTES_MAX)
            return await asyncio.to_thread(_look_at, body)

    async def _forward(
        self, request: web.Request, path: str, upstream: Upstream, body: bytes | None
    ) -> web.StreamResponse:
        parameters = {name: value for name, value in request.rel_url.query.items() if asked_by(name)}
        base = upstream.url.rstrip("/").removesuffix("/v1")
        headers = {name: value for name, value in request.headers.items() if asked_with(name)}
        address = URL(base + path, encoded=True).with_query(parameters)
        asking = self.client.request(
            request.method,
            address,
            # Nothing compressed: what an error quotes must be readable here.
            headers={**headers, **upstream.credentials, "accept-encoding": "identity"},
            data=None if body is None else BytesIO(body),
            allow_redirects=False,
            skip_auto_headers=("User-Agent",),
        )
        async with asking as answer:
            if answer.status >= _REDIRECT:
                return await _failure(answer, upstream)
            return await _stream(request, answer)

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


def _look_at(body: bytes) -> tuple[bytes, str | None]:
    if sum(body.count(mark) for mark in b",[{") > _MARKS_MAX:
        return b"", "it has more values than any prompt"
    document = msgspec.json.decode(body)
    if found := reaching_out(document):
        return b"", f"the vendor would fetch what the agent names: {found}"
    # Written anew, so that what was looked at is what is sent, also where a name stands twice.
    return msgspec.json.encode(document), None


async def _stream(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=_headers(answer))
    await response.prepare(request)
    try:
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
    except (aiohttp.ClientError, TimeoutError):
        # Half an answer must not look like a whole one.
        if request.transport is not None:
            request.transport.abort()
    else:
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
