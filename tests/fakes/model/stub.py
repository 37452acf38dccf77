"""The server that stands in for the vendors' APIs."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.fakes.model import anthropic, chat, gemini, responses
from tests.fakes.model.answer import Event, ModelAnswer, Refusal
from tests.fakes.model.conversation import Request
from tests.fakes.model.model import Model
from tests.fakes.model.prices import charged_for

_BODY_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """How one vendor writes requests, responses and errors."""

    plain: Callable[[ModelAnswer, Request], dict[str, Any]]
    events: Callable[[ModelAnswer, Request], Iterator[Event]]
    refused: Callable[[Refusal], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """A request to the stub with the response. A request of an unknown API has no response."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any = None
    request: Request | None = None
    answer: ModelAnswer | None = None


ANTHROPIC = Api(plain=anthropic.plain, events=anthropic.events, refused=anthropic.refused)
RESPONSES = Api(plain=responses.plain, events=responses.events, refused=chat.refused)
CHAT = Api(plain=chat.plain, events=chat.events, refused=chat.refused)
GEMINI = Api(plain=gemini.plain, events=gemini.events, refused=gemini.refused)


class ModelStub:
    """Serves on a port of 127.0.0.1 between enter and exit, and on a unix socket on request.

    `requests` has all requests in order. Every response is delayed by `delay` seconds: an agent writes its transcript a
    little later than it acts, so an agent that is killed at once would not remember its last action. `silent` is set
    when a response hangs. The response hangs until `hangs_up` is set.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        unix: Path | None = None,
        delay: float = 0.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.requests: list[ServedRequest] = []
        self.silent = asyncio.Event()
        self.hangs_up = asyncio.Event()
        self._sleep = sleep
        self.url = ""
        self.unix = unix
        self._port = port
        self._delay = delay
        self._model = Model()
        self._runner = web.AppRunner(
            self._application(), handler_cancellation=True, access_log=None, shutdown_timeout=0
        )

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        if self.unix is not None:
            await web.UnixSite(self._runner, str(self.unix)).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    @property
    def asked(self) -> list[ServedRequest]:
        """The requests that were for the model."""
        return [served for served in self.requests if served.answer is not None]

    @property
    def charged_usd(self) -> float:
        """The cost of all responses that began. A refused request is free."""
        begun = [each for each in self.asked if each.request and each.answer and each.answer.refusal is None]
        return sum(charged_for(each.answer.usage, each.request.model) for each in begun if each.request and each.answer)

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=_BODY_BYTES_MAX)
        application.router.add_post("/v1/messages", self._messages)
        application.router.add_post("/v1/messages/count_tokens", self._count_tokens)
        application.router.add_post("/v1/responses", self._responses)
        application.router.add_post("/v1/chat/completions", self._chat)
        application.router.add_post("/{version:v1|v1beta}/models/{model}:{verb}", self._gemini)
        application.router.add_get("/v1/models", self._models)
        application.router.add_route("*", "/{rest:.*}", self._unknown)
        return application

    async def _messages(self, asked: web.Request) -> web.StreamResponse:
        body = await asked.json()
        return await self._serve(asked, body, anthropic.read(body, asked.headers), ANTHROPIC)

    async def _responses(self, asked: web.Request) -> web.StreamResponse:
        body = await asked.json()
        return await self._serve(asked, body, responses.read(body, asked.headers), RESPONSES)

    async def _chat(self, asked: web.Request) -> web.StreamResponse:
        body = await asked.json()
        return await self._serve(asked, body, chat.read(body, asked.headers), CHAT)

    async def _gemini(self, asked: web.Request) -> web.StreamResponse:
        body, stream = await asked.json(), asked.match_info["verb"].startswith("stream")
        request = gemini.read(body, model=asked.match_info["model"], stream=stream)
        return await self._serve(asked, body, request, GEMINI)

    async def _models(self, asked: web.Request) -> web.Response:
        self._note(asked, None)
        return web.json_response({"object": "list", "has_more": False, "data": [], "models": []})

    async def _count_tokens(self, asked: web.Request) -> web.Response:
        text = await asked.text()
        self._note(asked, text)
        return web.json_response({"input_tokens": len(text) // 4})

    async def _unknown(self, asked: web.Request) -> web.Response:
        self._note(asked, await asked.text())
        return web.json_response({"error": {"type": "not_found_error", "message": "no such route"}}, status=404)

    async def _serve(self, asked: web.Request, body: Any, request: Request, api: Api) -> web.StreamResponse:
        answer = self._model.answer(request)
        self._note(asked, body, request, answer)
        await self._sleep(self._delay + answer.delay)
        if answer.refusal is not None:
            refusal = answer.refusal
            return web.json_response(api.refused(refusal), status=refusal.status, headers=refusal.headers)
        if not request.stream:
            if answer.hangs:
                await self._hang(asked)
            return web.json_response(api.plain(answer, request))
        return await self._stream(asked, answer, api.events(answer, request))

    async def _stream(self, asked: web.Request, answer: ModelAnswer, events: Iterator[Event]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-cache"})
        await response.prepare(asked)
        # An agent may close the connection early, which is no error of the stub.
        with suppress(ConnectionError):
            for event in events:
                name = f"event: {event.name}\n" if event.name else ""
                data = event.data if isinstance(event.data, str) else json.dumps(event.data)
                await response.write(f"{name}data: {data}\n\n".encode())
                if answer.drops and asked.transport is not None:
                    asked.transport.close()
                    return response
                await asyncio.sleep(event.pause)
            if answer.hangs:
                await self._hang(asked)
            await response.write_eof()
        return response

    async def _hang(self, asked: web.Request) -> None:
        self.silent.set()
        await self.hangs_up.wait()
        if asked.transport is not None:
            asked.transport.close()

    def _note(
        self, asked: web.Request, body: Any, request: Request | None = None, answer: ModelAnswer | None = None
    ) -> None:
        served = ServedRequest(
            method=asked.method,
            path=asked.path_qs,
            headers=dict(asked.headers),
            body=body,
            request=request,
            answer=answer,
        )
        self.requests.append(served)
