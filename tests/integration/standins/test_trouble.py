"""Parts that all stand-ins share: faults on demand, the control interface, and a state file that survives a kill."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from kingdom.standins.faults import FaultQueue, ServerFault
from kingdom.standins.server import CONTROL, FAULTS, STATE_FILE, RunningServer, new_application, start
from kingdom.standins.state_file import StateFile
from tests.integration.running import eventually
from tests.patience import PATIENCE_SECONDS


async def _add_thing(request: web.Request) -> web.Response:
    state_file = request.app[STATE_FILE]
    with state_file.change("POST thing"):
        number = state_file.next_number("thing")
    return web.json_response({"number": number, "padding": "x" * 1000})


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningServer]:
    application = new_application(StateFile(tmp_path / "state" / "state.json", {}))
    application.router.add_post("/things", _add_thing)
    application.router.add_post("/others", _add_thing)
    standin = await start(application)
    yield standin
    await standin.stop()


@pytest.fixture
async def client(running: RunningServer) -> AsyncIterator[aiohttp.ClientSession]:
    patience = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
    async with aiohttp.ClientSession(running.url, timeout=patience) as session:
        yield session


async def add(client: aiohttp.ClientSession, path: str = "/things") -> int:
    async with client.post(path) as answer:
        await answer.read()
        return answer.status


def done(running: RunningServer) -> int:
    return running.application[STATE_FILE].count("POST thing")


async def test_a_refused_request_does_nothing(running: RunningServer, client: aiohttp.ClientSession) -> None:
    running.application[FAULTS].add([ServerFault(kind="refuse", status=503, retry_after=9)])
    async with client.post("/things") as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "9")
    assert done(running) == 0
    assert await add(client) == 200


async def test_a_request_whose_answer_is_lost_is_carried_out(
    running: RunningServer, client: aiohttp.ClientSession
) -> None:
    running.application[FAULTS].add([ServerFault(kind="lose_answer")])
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await add(client)
    assert done(running) == 1
    assert await add(client) == 200


async def test_a_truncated_answer_is_shorter_than_its_content_length(
    running: RunningServer, client: aiohttp.ClientSession
) -> None:
    running.application[FAULTS].add([ServerFault(kind="truncate")])
    async with client.post("/things") as answer:
        assert answer.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
    assert int(answer.headers["Content-Length"]) > 1000
    assert done(running) == 1


async def test_a_delayed_answer_comes_later(
    running: RunningServer, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.application[FAULTS].add([ServerFault(kind="delay", seconds=3600)])
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert await add(client) == 200
    assert slept == [3600]
    assert done(running) == 1


async def test_a_delayed_answer_does_not_delay_others(running: RunningServer, client: aiohttp.ClientSession) -> None:
    running.application[FAULTS].add([ServerFault(kind="delay", path="/things", seconds=3600)])
    waiting = asyncio.create_task(add(client))

    async def carried_out() -> bool:
        return done(running) == 1

    await eventually(carried_out)
    assert await add(client, "/others") == 200
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_faults_occur_as_often_and_for_the_paths_that_were_requested(
    running: RunningServer, client: aiohttp.ClientSession
) -> None:
    running.application[FAULTS].add([ServerFault(kind="refuse", method="POST", path="/thing*", times=2)])
    assert [await add(client, path) for path in ("/others", "/things", "/things", "/things")] == [200, 500, 500, 200]


def test_faults_occur_in_order_and_only_for_matching_requests() -> None:
    faults = FaultQueue()
    faults.add([ServerFault(kind="reorder", path="message"), ServerFault(kind="repeat", times=2)])
    met = [faults.take("PUSH", path) for path in ("reaction", "message", "message", "message")]
    assert [fault.kind if fault else None for fault in met] == ["repeat", "reorder", "repeat", None]


async def test_faults_can_be_requested_and_calls_inspected_over_http(
    running: RunningServer, client: aiohttp.ClientSession
) -> None:
    faults = [{"kind": "refuse", "status": 429, "path": "*", "times": 1}]
    async with client.post(f"{CONTROL}/faults", json=faults) as answer:
        assert await answer.json() == {"added": 1}
    async with client.get(f"{CONTROL}/calls") as answer:
        assert (answer.status, await answer.json()) == (200, [])
    assert [await add(client), await add(client)] == [429, 200]
    async with client.get(f"{CONTROL}/state") as answer:
        assert await answer.json() == {"numbers": {"thing": 1}}
    async with client.get(f"{CONTROL}/calls") as answer:
        assert [call["call"] for call in await answer.json()] == ["POST thing"]
    assert done(running) == 1


def test_a_change_that_raises_an_error_is_not_stored(tmp_path: Path) -> None:
    state_file = StateFile(tmp_path / "state.json", {"things": ["one"]})
    with state_file.change("add"):
        state_file.next_number("thing")
    before = (tmp_path / "state.json").read_bytes()

    def fail() -> None:
        with state_file.change("add") as state:
            state["things"].append("two")
            state_file.next_number("thing")
            raise ValueError(state)

    with pytest.raises(ValueError, match="two"):
        fail()
    assert state_file.state == {"things": ["one"], "numbers": {"thing": 1}}
    assert state_file.count("add") == 1
    assert (tmp_path / "state.json").read_bytes() == before


def test_a_state_file_continues_where_it_stopped(tmp_path: Path) -> None:
    with StateFile(tmp_path / "state.json", {"things": []}).change("add", key="one") as state:
        state["things"].append("one")
    again = StateFile(tmp_path / "state.json", {"things": []})
    assert again.state == {"things": ["one"]}
    assert (again.count("add", key="one"), again.count("add", key="two"), again.count("add")) == (1, 0, 1)


@asynccontextmanager
async def changing(path: Path, where: str) -> AsyncIterator[asyncio.subprocess.Process]:
    child = "tests.integration.standins.state_file_child"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", child, str(path), where), stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def read_json_line(process: asyncio.subprocess.Process) -> Any:
    assert process.stdout is not None
    return json.loads(await asyncio.wait_for(process.stdout.readline(), PATIENCE_SECONDS))


async def test_a_change_is_not_stored_if_its_process_is_killed_during_the_change(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with StateFile(path, {"entries": []}).change("add") as state:
        state["entries"].append("before")
    async with changing(path, "inside") as process:
        assert await read_json_line(process) == 2
    assert StateFile(path, {}).state == {"entries": ["before"]}


async def test_a_state_file_is_complete_if_its_process_is_killed_while_it_writes(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    reported = 0
    for _ in range(3):
        async with changing(path, "on and on") as process:
            for _ in range(20):
                reported = await read_json_line(process)
            process.kill()
            assert process.stdout is not None
            # Its output until it died. The last line may be incomplete.
            rest = await asyncio.wait_for(process.stdout.read(), PATIENCE_SECONDS)
            reported = max([reported, *map(int, rest.decode().split("\n")[:-1])])
        state_file = StateFile(path, {})
        assert len(state_file.state["entries"]) == state_file.count("add")
        assert state_file.count("add") - reported in (0, 1)
