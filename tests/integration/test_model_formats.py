"""The HTTP responses of the model stub, as each vendor's program receives them."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientPayloadError, ClientSession, UnixConnector

from tests.fakes.model.stub import ModelStub
from tests.fakes.scripts import scripted
from tests.patience import PATIENCE_SECONDS

MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
CHAT = "/v1/chat/completions"
GENERATE = "/v1beta/models/gemini-2.5-pro:generateContent"
STREAM_GENERATE = "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse"
PATHS = [MESSAGES, RESPONSES, CHAT, GENERATE]
SAY_AND_RUN = ({"say": "Hello."}, {"cost": 0.1}, {"run": "ls"}, {"answer": "seen"})


@pytest.fixture
async def stub() -> AsyncIterator[ModelStub]:
    async with ModelStub() as stub:
        yield stub


@pytest.fixture
async def session(stub: ModelStub) -> AsyncIterator[ClientSession]:
    async with ClientSession(stub.url) as session:
        yield session


def body_for(path: str, prompt: str, *, stream: bool = False) -> dict[str, Any]:
    """Return the first request of a conversation as the program of a vendor writes it."""
    shell = {"type": "object", "properties": {"command": {"type": "string"}}}
    message = {"role": "user", "content": prompt}
    match path:
        case "/v1/messages":
            tools = [{"name": "Bash", "input_schema": shell}]
            return {"model": "claude-opus-5-5", "stream": stream, "messages": [message], "tools": tools}
        case "/v1/responses":
            tools = [{"type": "function", "name": "exec_command", "parameters": shell}]
            items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt}]}]
            return {"model": "gpt-5", "stream": stream, "input": items, "tools": tools}
        case "/v1/chat/completions":
            functions = [{"type": "function", "function": {"name": "bash", "parameters": shell}}]
            return {"model": "gpt-stub", "stream": stream, "messages": [message], "tools": functions}
    declared = {"functionDeclarations": [{"name": "run_shell_command", "parameters": shell}]}
    return {"contents": [{"role": "user", "parts": [{"text": prompt}]}], "tools": [declared]}


async def asked(session: ClientSession, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    async with session.post(path, json=body) as response:
        assert response.status == 200
        answer: dict[str, Any] = await response.json()
        return answer


async def streamed(session: ClientSession, path: str, body: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the events of a stream with their names."""
    async with session.post(path, json=body) as response:
        assert response.content_type == "text/event-stream"
        text = await response.text()
    events = []
    for block in text.strip().split("\n\n"):
        *names, data = block.split("\n")
        raw = data.removeprefix("data: ")
        events.append((names[0].removeprefix("event: ") if names else "", raw if raw == "[DONE]" else json.loads(raw)))
    return events


@pytest.mark.parametrize(
    "words",
    ["PreToolUse:Bash hook error: the budget is spent", "The user doesn't want to proceed with this tool use."],
)
async def test_a_tool_that_was_denied_is_called_again(session: ClientSession, words: str) -> None:
    body = body_for(MESSAGES, scripted({"cost": 0.5}, {"wait_for": "may-go"}))
    first = await asked(session, MESSAGES, body)
    [call] = first["content"]
    refused = {"type": "tool_result", "tool_use_id": call["id"], "is_error": True, "content": words}
    body["messages"] += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [refused]}]
    again = await asked(session, MESSAGES, body)
    assert (again["content"][0]["input"], again["usage"]) == (call["input"], first["usage"])


async def test_messages_return_text_and_tool_calls_together_and_accept_tool_results(session: ClientSession) -> None:
    body = body_for(MESSAGES, scripted(*SAY_AND_RUN))
    first = await asked(session, MESSAGES, body)
    text, call = first["content"]
    assert (first["role"], first["stop_reason"], text) == ("assistant", "tool_use", {"type": "text", "text": "Hello."})
    assert (call["type"], call["name"], call["input"]["command"]) == ("tool_use", "Bash", "ls")
    assert first["usage"]["input_tokens"] == 25_000
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "a.txt"}
    turn = [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
    last = await asked(session, MESSAGES, {**body, "messages": [*body["messages"], *turn]})
    assert (last["content"], last["stop_reason"]) == ([{"type": "text", "text": "seen"}], "end_turn")


async def test_a_stream_of_messages_names_its_events(session: ClientSession) -> None:
    events = await streamed(session, MESSAGES, body_for(MESSAGES, scripted(*SAY_AND_RUN), stream=True))
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert [name for name, _ in events] == ["message_start", *block, *block, "message_delta", "message_stop"]
    assert all(event["type"] == name for name, event in events)
    deltas = [event["delta"] for name, event in events if name == "content_block_delta"]
    assert deltas[0] == {"type": "text_delta", "text": "Hello."}
    assert json.loads(deltas[1]["partial_json"])["command"] == "ls"


async def test_responses_return_items_and_accept_tool_results(session: ClientSession) -> None:
    body = body_for(RESPONSES, scripted(*SAY_AND_RUN))
    first = await asked(session, RESPONSES, body)
    message, call = first["output"]
    assert (first["status"], first["usage"]["total_tokens"]) == ("completed", 25_000)
    assert message["content"][0]["text"] == "Hello."
    assert (call["type"], call["name"], json.loads(call["arguments"])["cmd"]) == ("function_call", "exec_command", "ls")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "Process exited with code 0"}
    last = await asked(session, RESPONSES, {**body, "input": [*body["input"], message, call, output]})
    assert [item["content"][0]["text"] for item in last["output"]] == ["seen"]


async def test_a_stream_of_responses_is_numbered_and_ends_with_the_whole(session: ClientSession) -> None:
    events = await streamed(session, RESPONSES, body_for(RESPONSES, scripted(*SAY_AND_RUN), stream=True))
    names = [name.removeprefix("response.") for name, _ in events]
    assert [event["sequence_number"] for _, event in events] == list(range(len(events)))
    assert (names[0], names[-1]) == ("created", "completed")
    assert names.count("output_item.added") == names.count("output_item.done") == 2
    assert {"content_part.added", "output_text.delta", "function_call_arguments.done"} <= set(names)
    assert events[-1][1]["response"]["output"] == [
        event["item"] for name, event in events if name == "response.output_item.done"
    ]


async def test_a_tool_of_kingdom_has_a_namespace_in_responses(session: ClientSession) -> None:
    petition = scripted({"petition": "github.comment", "body": {"text": "fine"}})
    call = (await asked(session, RESPONSES, body_for(RESPONSES, petition)))["output"][0]
    assert (call["namespace"], call["name"]) == ("mcp__kingdom", "petition")
    assert json.loads(call["arguments"]) == {"kind": "github.comment", "body": {"text": "fine"}}


async def test_chat_sends_a_message_and_accepts_tool_results(session: ClientSession) -> None:
    body = body_for(CHAT, scripted(*SAY_AND_RUN))
    first = await asked(session, CHAT, body)
    choice = first["choices"][0]
    message, call = choice["message"], choice["message"]["tool_calls"][0]
    assert (choice["finish_reason"], message["content"]) == ("tool_calls", "Hello.")
    assert (call["type"], call["function"]["name"]) == ("function", "bash")
    assert json.loads(call["function"]["arguments"])["command"] == "ls"
    assert first["usage"] == {"prompt_tokens": 25_000, "completion_tokens": 0, "total_tokens": 25_000}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "a.txt"}
    last = await asked(session, CHAT, {**body, "messages": [*body["messages"], message, result]})
    assert last["choices"][0]["message"] == {"role": "assistant", "content": "seen"}
    assert last["choices"][0]["finish_reason"] == "stop"


async def test_a_stream_of_chat_has_unnamed_events_and_ends_with_done(session: ClientSession) -> None:
    events = await streamed(session, CHAT, body_for(CHAT, scripted(*SAY_AND_RUN), stream=True))
    assert {name for name, _ in events} == {""}
    chunks = [data for _, data in events[:-1]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert deltas[:2] == [{"role": "assistant", "content": ""}, {"content": "Hello."}]
    assert deltas[2]["tool_calls"][0]["index"] == 0
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["prompt_tokens"]) == ([], 25_000)
    assert events[-1][1] == "[DONE]"


async def test_a_title_for_a_chat_is_not_part_of_its_script(session: ClientSession, stub: ModelStub) -> None:
    body = body_for(CHAT, scripted({"fail": "never"}))
    system = {"role": "system", "content": "You are a title generator."}
    await asked(session, CHAT, {**body, "tools": [], "messages": [system, *body["messages"]]})
    assert stub.asked[0].request is not None
    assert stub.asked[0].request.entries == []


async def test_gemini_returns_parts_and_accepts_function_responses(session: ClientSession) -> None:
    body = body_for(GENERATE, scripted(*SAY_AND_RUN))
    first = await asked(session, GENERATE, body)
    content = first["candidates"][0]["content"]
    text, part = content["parts"]
    assert (content["role"], text) == ("model", {"text": "Hello."})
    call = part["functionCall"]
    assert (call["name"], call["args"]["command"]) == ("run_shell_command", "ls")
    assert first["usageMetadata"]["promptTokenCount"] == 25_000
    response = {"functionResponse": {"id": call["id"], "name": call["name"], "response": {"output": "a.txt"}}}
    contents = [*body["contents"], content, {"role": "user", "parts": [response]}]
    last = await asked(session, GENERATE, {**body, "contents": contents})
    assert last["candidates"][0]["content"]["parts"] == [{"text": "seen"}]
    assert last["candidates"][0]["finishReason"] == "STOP"


async def test_a_stream_of_gemini_finishes_with_its_last_part(session: ClientSession) -> None:
    events = await streamed(session, STREAM_GENERATE, body_for(GENERATE, scripted(*SAY_AND_RUN)))
    candidates = [event["candidates"][0] for _, event in events]
    assert [candidate.get("finishReason") for candidate in candidates] == [None, "STOP"]
    assert "functionCall" in candidates[-1]["content"]["parts"][0]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 529])
async def test_errors_have_the_format_of_each_vendor(session: ClientSession, path: str, status: int) -> None:
    error = {"model_error": status, "message": "not today", "retry_after": 3}
    async with session.post(path, json=body_for(path, scripted(error))) as response:
        assert (response.status, response.headers["retry-after"]) == (status, "3")
        assert (await response.json())["error"]["message"] == "not today"


@pytest.mark.parametrize("path", [*PATHS[:3], STREAM_GENERATE])
async def test_a_stream_that_hangs_sends_its_words_and_then_nothing(
    session: ClientSession, stub: ModelStub, path: str
) -> None:
    body = body_for(path.partition("?")[0], scripted({"say": "Hello."}, {"hang": True}), stream=True)
    received = bytearray()
    async with asyncio.timeout(PATIENCE_SECONDS), session.post(path, json=body) as response:
        await stub.silent.wait()
        stub.hangs_up.set()
        with suppress(ClientPayloadError):
            while more := await response.content.readany():
                received += more
    assert b"Hello." in received
    assert not any(end in received for end in (b"message_stop", b"response.completed", b"[DONE]", b"STOP"))


@pytest.mark.parametrize("path", [*PATHS[:3], STREAM_GENERATE])
async def test_a_stream_that_is_dropped_once_is_complete_the_next_time(session: ClientSession, path: str) -> None:
    body = body_for(path.partition("?")[0], scripted({"drop_stream": True, "times": 1}), stream=True)
    with pytest.raises(ClientPayloadError):
        await streamed(session, path, body)
    assert "done" in str(await streamed(session, path, body))


async def test_a_text_may_come_word_by_word(session: ClientSession) -> None:
    body = body_for(MESSAGES, scripted({"stream": "one two", "every": 0.001}), stream=True)
    events = await streamed(session, MESSAGES, body)
    texts = [event["delta"]["text"] for name, event in events if name == "content_block_delta"]
    assert texts == ["one ", "two", "done"]


async def test_a_response_may_be_late() -> None:
    slept = list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async with ModelStub(delay=60, sleep=sleep) as stub, ClientSession(stub.url) as session:
        await asked(session, MESSAGES, body_for(MESSAGES, scripted({"delay": 3600})))
    assert slept == [3660]


async def test_a_stub_can_be_reached_by_a_socket_without_a_network(tmp_path: Path) -> None:
    async with (
        ModelStub(unix=tmp_path / "model.sock") as stub,
        ClientSession("http://model", connector=UnixConnector(str(stub.unix))) as session,
    ):
        answer = await asked(session, MESSAGES, body_for(MESSAGES, scripted({"answer": "near"})))
    assert answer["content"][0]["text"] == "near"


async def test_an_unknown_path_is_not_found_and_is_recorded(session: ClientSession, stub: ModelStub) -> None:
    async with session.get("/v1/secrets?all=1") as response:
        assert response.status == 404
    assert [(served.method, served.path) for served in stub.requests] == [("GET", "/v1/secrets?all=1")]
    assert stub.asked == []
