"""The requests that the model proxy forwards, and what it adds and removes."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs
from structlog.typing import EventDict

from kingdom.log_output import configure_logs
from kingdom.soldiers.sandbox.model_proxy import ModelProxy, ToolCallHandler
from kingdom.soldiers.sandbox.vendors import Upstream, Vendor
from tests.patience import PATIENCE_SECONDS

KEY = "sk-the-real-one"
HOST = "http://gate"


@dataclass
class Model:
    """A vendor's endpoint that records requests and answers as configured."""

    url: str = ""
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    status: int = 200
    words: bytes = b'{"ok": true}'
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    torn: bool = False
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.asked.append((request.method, str(request.rel_url), headers, await request.read()))
        if request.headers.get("accept") != "text/event-stream":
            return web.Response(status=self.status, body=self.words, headers=self.headers)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"first\n")
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        if self.torn and request.transport is not None:
            request.transport.abort()
        else:
            await response.write(b"second\n")
        return response


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    made = Model()
    application = web.Application(client_max_size=64 << 20)
    application.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@asynccontextmanager
async def through(
    folder: Path, model: Model, vendors: Sequence[Vendor] = tuple(Vendor), answer_call: ToolCallHandler | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    upstreams = [Upstream(vendor=vendor, url=model.url, key=KEY) for vendor in vendors]
    async with (
        ModelProxy(folder / "gate", upstreams, on_tool_call=answer_call) as proxy,
        aiohttp.ClientSession(HOST, connector=aiohttp.UnixConnector(str(proxy.socket))) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("method", "path", "header"),
    [
        ("POST", "/v1/messages?beta=true", ("x-api-key", KEY)),
        ("POST", "/v1/messages/count_tokens", ("x-api-key", KEY)),
        ("POST", "/v1/responses", ("authorization", f"Bearer {KEY}")),
        ("POST", "/v1/chat/completions", ("authorization", f"Bearer {KEY}")),
        ("GET", "/v1/models", ("authorization", f"Bearer {KEY}")),
        ("POST", "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse", ("x-goog-api-key", KEY)),
    ],
)
async def test_requests_to_a_model_are_forwarded_with_the_key(
    tmp_path: Path, model: Model, method: str, path: str, header: tuple[str, str]
) -> None:
    body = {"text": "hällo"} if method == "POST" else None
    own: dict[str, str] = {
        "x-api-key": "mine",
        "authorization": "Bearer mine",
        "x-goog-api-key": "mine",
        "cookie": "mine",
    }
    async with through(tmp_path, model) as client, client.request(method, path, headers=own, json=body) as answer:
        assert (answer.status, await answer.json()) == (200, {"ok": True})
    [(asked, place, headers, sent)] = model.asked
    assert (asked, place) == (method, path)
    assert {name: value for name, value in headers.items() if "mine" in value or KEY in value} == dict([header])
    assert not sent or json.loads(sent) == {"text": "hällo"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/messages"),
        ("DELETE", "/v1/messages"),
        ("POST", "/v1/messages/batches"),
        ("POST", "/v1/files"),
        ("GET", "/v1/organizations/api_keys"),
        ("POST", "/v1/messages/../organizations"),
        ("POST", "/v1/messages%2f..%2ffiles"),
        ("POST", "//v1/messages"),
        ("POST", "/v1beta/models/x:generateContent/../files"),
        ("POST", "/v1beta/files"),
        ("POST", "/voice"),
    ],
)
async def test_anything_else_is_refused_and_logged_without_secrets(
    tmp_path: Path, model: Model, method: str, path: str
) -> None:
    with captured_logs() as logs:
        async with ModelProxy(tmp_path / "gate", [Upstream(vendor=Vendor.ANTHROPIC, url=model.url, key=KEY)]) as proxy:
            assert b" 403 " in await raw(proxy, f"{method} {path}?key=sesame HTTP/1.1", "x-api-key: sesame")
            assert proxy.refused == 1
    assert model.asked == []
    [line] = [line for line in logs if line["event"] == "refused a request of an agent"]
    assert "sesame" not in str(line)
    assert KEY not in str(line)


@contextmanager
def captured_logs() -> Iterator[list[EventDict]]:
    configure_logs(json=True, level=logging.WARNING)
    try:
        with capture_logs() as logs:
            yield logs
    finally:
        configure_logs(json=True, level=logging.ERROR)


async def raw(proxy: ModelProxy, *head: str, body: bytes = b"") -> bytes:
    """Send a malformed request, and return the first line of the answer."""
    reader, writer = await asyncio.open_unix_connection(proxy.socket)
    lines = (*head, "Host: gate", f"Content-Length: {len(body)}", "Connection: close")
    writer.write("\r\n".join((*lines, "", "")).encode() + body)
    line = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return line


@pytest.mark.parametrize(
    "document",
    [
        {"mcp_servers": [{"type": "url", "url": "https://evil.example"}]},
        {"tools": [{"type": "mcp", "server_url": "https://evil.example"}]},
        {"tools": [{"type": "web_fetch_20260101", "name": "web_fetch"}]},
        {
            "messages": [
                {"content": [{"type": "image", "source": {"type": "url", "url": "https://evil.example/?secret"}}]}
            ]
        },
        {"input": [{"content": [{"type": "input_image", "image_url": "https://evil.example/?secret"}]}]},
        {"messages": [{"content": [{"type": "image_url", "image_url": {"url": "https://evil.example/?secret"}}]}]},
        {"contents": [{"parts": [{"fileData": {"fileUri": "https://evil.example/?secret"}}]}]},
        *({"tools": [{name: {}}]} for name in ("urlContext", "url_context", "codeExecution", "code_execution")),
        {"tools": [{"mcpServers": [{"streamableHttpTransport": {"url": "https://evil.example"}}]}]},
        {"tools": [{"type": "mcp", "connector_id": "connector_dropbox", "authorization": "of the attacker"}]},
        {"tools": [{"type": "web_fetch_20260101", "name": "web_fetch", "content": ""}]},
        {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]},
        {"type": "tool_use", "input": [{"content": [{"type": "input_image", "image_url": "https://evil.example"}]}]},
        {"messages": [{"content": [{"type": "video_url", "video_url": {"url": "https://evil.example/?secret"}}]}]},
        {"messages": [{"content": [{"type": "file", "file": {"file_data": "https://evil.example/?secret"}}]}]},
        {
            "contents": [
                {"parts": [{"functionResponse": {"parts": [{"fileData": {"fileUri": "https://evil.example"}}]}}]}
            ]
        },
    ],
)
async def test_an_agent_cannot_redirect_the_requests_to_a_vendor(
    tmp_path: Path, model: Model, document: dict[str, Any]
) -> None:
    async with through(tmp_path, model) as client, client.post("/v1/messages", json=document) as answer:
        assert answer.status == 403
    assert model.asked == []


async def test_tool_inputs_and_outputs_are_forwarded(tmp_path: Path, model: Model) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    call = {
        "type": "tool_use",
        "name": "fetch",
        "input": {"type": "url", "url": "https://a.example", "server_url": "b"},
    }
    schema = {"properties": {"mcp_servers": {"type": "string"}, "code_execution": {"type": ["string", "null"]}}}
    tools = [{"name": "t", "input_schema": schema}, {"functionDeclarations": [{"parametersJsonSchema": schema}]}]
    taken = [
        {"type": "function_call_output", "output": "https://a.example"},
        {"type": "local_shell_call", "action": {"command": ["env"], "env": {"DATABASE_URL": "postgresql://a.example"}}},
        {"type": "web_search_call", "action": {"type": "open_page", "url": "https://a.example"}},
        {"type": "web_search_tool_result", "content": [{"type": "web_search_result", "url": "https://a.example"}]},
        {"type": "output_text", "annotations": [{"type": "url_citation", "url": "https://a.example"}]},
        {"type": "file", "file": {"file_id": "file-1", "file_data": "JVBERi0/"}},
        {"functionCall": {"args": {"image_url": "https://a.example"}}},
        {"client_metadata": {"repository_url": "https://a.example"}},
        {"functionResponse": {"response": {"file_uri": "https://a.example", "url_context": {}}}},
    ]
    answer_format = {"format": {"type": "json_schema", "schema": schema}}
    document = {"messages": [{"content": [image, call, *taken]}], "tools": tools, "text": answer_format}
    async with through(tmp_path, model) as client, client.post("/v1/messages", json=document) as answer:
        assert answer.status == 200


async def test_the_checked_body_is_the_body_that_is_sent(tmp_path: Path, model: Model) -> None:
    twice = b'{"mcp_servers": [{"url": "https://evil.example"}], "mcp_servers": []}'
    async with through(tmp_path, model) as client, client.post("/v1/messages", data=twice) as answer:
        assert answer.status == 200
    assert model.asked[0][3] == b'{"mcp_servers":[]}'


@pytest.mark.parametrize("body", [b"no json", b"[" * 100_000, b"\xff"])
async def test_a_body_that_cannot_be_checked_is_not_sent(tmp_path: Path, model: Model, body: bytes) -> None:
    async with through(tmp_path, model) as client, client.post("/v1/messages", data=body) as answer:
        assert answer.status == 400
    assert model.asked == []


async def test_a_body_that_is_too_long_is_refused(tmp_path: Path, model: Model) -> None:
    async with ModelProxy(tmp_path / "gate", [Upstream(vendor=Vendor.ANTHROPIC, url=model.url, key=KEY)]) as proxy:
        reader, writer = await asyncio.open_unix_connection(proxy.socket)
        writer.write(b"POST /v1/messages HTTP/1.1\r\nHost: proxy\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"1000000\r\n" + b"x" * (1 << 24) + b"\r\n"
        for _ in range(5):
            writer.write(chunk)
        assert b" 413 " in await reader.readline()
        writer.close()
    assert model.asked == []


async def test_an_answer_is_streamed_while_the_model_writes_it(tmp_path: Path, model: Model) -> None:
    headers = {"accept": "text/event-stream"}
    async with through(tmp_path, model) as client, client.post("/v1/messages", json={}, headers=headers) as answer:
        assert await answer.content.readline() == b"first\n"
        model.go_on.set()
        assert await answer.content.read() == b"second\n"


async def test_an_answer_that_breaks_off_is_an_error_for_the_agent(tmp_path: Path, model: Model) -> None:
    headers = {"accept": "text/event-stream"}
    model.torn = True
    async with through(tmp_path, model) as client, client.post("/v1/messages", json={}, headers=headers) as answer:
        assert await answer.content.readline() == b"first\n"
        model.go_on.set()
        with pytest.raises(aiohttp.ClientError):
            await answer.content.read()


async def test_the_stream_of_a_model_is_closed_when_the_agent_disconnects(tmp_path: Path, model: Model) -> None:
    headers = {"accept": "text/event-stream"}
    async with through(tmp_path, model) as client:
        async with client.post("/v1/messages", json={"stream": True}, headers=headers) as answer:
            assert await answer.content.readline() == b"first\n"
        async with asyncio.timeout(PATIENCE_SECONDS):
            await model.left.wait()


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500])
async def test_an_error_of_the_vendor_is_reported_without_the_key_that_it_quotes(
    tmp_path: Path, model: Model, status: int
) -> None:
    model.status, model.words = status, f'{{"error": "bad key {KEY}"}}'.encode()
    model.headers = {"retry-after": "7", "set-cookie": "a=b"}
    async with through(tmp_path, model) as client, client.post("/v1/messages", json={}) as answer:
        assert answer.status == status
        assert KEY not in await answer.text()
        assert "set-cookie" not in answer.headers
        assert status == 401 or answer.headers["retry-after"] == "7"


async def test_a_long_error_of_the_vendor_is_reported_completely(tmp_path: Path, model: Model) -> None:
    filler = "x" * 900_000
    model.status, model.words = 400, f"{filler} bad key {KEY}; resets at 15:00".encode()
    async with through(tmp_path, model) as client, client.post("/v1/messages", json={}) as answer:
        assert (await answer.text()).removeprefix(filler) == " bad key [the model key]; resets at 15:00"
    model.words *= 2
    async with through(tmp_path, model) as client, client.post("/v1/messages", json={}) as answer:
        assert (answer.status, (await answer.json())["error"]["type"]) == (400, "api_error")


async def test_a_redirect_is_not_followed(tmp_path: Path, model: Model) -> None:
    model.status, model.headers = 307, {"location": f"{model.url}/elsewhere"}
    async with through(tmp_path, model) as client, client.post("/v1/messages", json={}) as answer:
        assert answer.status == 502
    assert len(model.asked) == 1


async def test_an_unreachable_model_is_reported(tmp_path: Path) -> None:
    gone = Model(url="http://127.0.0.1:1")
    with captured_logs() as logs:
        async with through(tmp_path, gone) as client, client.post("/v1/messages", json={}) as answer:
            assert answer.status == 502
    assert [line["url"] for line in logs if line["event"] == "the model cannot be reached"] == [gone.url]


async def test_a_request_to_a_vendor_without_a_key_is_refused(tmp_path: Path, model: Model) -> None:
    async with through(tmp_path, model, [Vendor.ANTHROPIC]) as client:
        async with client.post("/v1/responses", json={}) as answer:
            assert answer.status == 403
        async with client.head("/") as answer:
            assert answer.status == 200


async def test_the_tools_receive_posted_calls(tmp_path: Path, model: Model) -> None:
    async def answer_call(body: bytes) -> bytes:
        return body.upper()

    async with (
        through(tmp_path, model, answer_call=answer_call) as client,
        client.post("/voice", data=b'"hear"') as answer,
    ):
        assert await answer.text() == '"HEAR"'


async def test_on_loopback_only_a_sender_with_the_secret_is_accepted(tmp_path: Path, model: Model) -> None:
    upstream = Upstream(vendor=Vendor.ANTHROPIC, url=model.url, key=KEY)
    async with ModelProxy(tmp_path / "gate", [upstream], on_loopback=True) as proxy, aiohttp.ClientSession() as client:
        async with client.post(f"{proxy.url}/v1/messages", json={}) as answer:
            assert answer.status == 200
        port = proxy.url.split(":")[2].split("/")[0]
        for path in ("/v1/messages", "/wrong/v1/messages", "/"):
            async with client.post(f"http://127.0.0.1:{port}{path}", json={}) as answer:
                assert answer.status == 403
    assert len(model.asked) == 1


async def test_an_agent_cannot_use_up_all_connections(tmp_path: Path, model: Model) -> None:
    async with ModelProxy(tmp_path / "gate", [Upstream(vendor=Vendor.ANTHROPIC, url=model.url, key=KEY)]) as proxy:
        opened = [await asyncio.open_unix_connection(proxy.socket) for _ in range(140)]
        assert await asyncio.wait_for(opened[-1][0].read(), PATIENCE_SECONDS) == b""
        for _, writer in opened:
            writer.close()


async def test_a_socket_may_be_in_a_deep_directory_and_is_removed_at_the_end(tmp_path: Path) -> None:
    deep = tmp_path / ("folder" * 20) / "gate"
    async with ModelProxy(deep, []) as proxy:
        assert proxy.socket.is_socket()
        assert deep.stat().st_mode & 0o077 == 0
    assert not deep.exists()
    await proxy.close()


def test_a_key_is_not_shown() -> None:
    assert KEY not in repr(Upstream(vendor=Vendor.OPENAI, url="https://api.example", key=KEY))


async def test_a_body_of_very_many_values_is_not_even_read_as_json(tmp_path: Path, model: Model) -> None:
    many = BytesIO(b"[" + b"{}," * 4_100_000 + b"1]")
    async with through(tmp_path, model) as client, client.post("/v1/messages", data=many) as answer:
        assert answer.status == 403
    assert model.asked == []


async def test_a_long_conversation_is_forwarded(tmp_path: Path, model: Model) -> None:
    long = BytesIO(json.dumps({"messages": [{"content": "a, b " * 500_000}]}).encode())
    async with through(tmp_path, model) as client, client.post("/v1/messages", data=long) as answer:
        assert answer.status == 200
    assert len(model.asked[0][3]) > 2_000_000


async def test_input_to_the_tools_has_a_limit(tmp_path: Path, model: Model) -> None:
    async def answer_call(body: bytes) -> bytes:
        return body

    async with (
        through(tmp_path, model, answer_call=answer_call) as client,
        client.post("/voice", data=BytesIO(bytes(2 << 20))) as answer,
    ):
        assert answer.status == 413
