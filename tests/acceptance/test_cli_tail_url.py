"""`kingdom bus tail --url` reads the log of another machine."""

import asyncio
import json
import sys
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry

from kingdom.bootstrap import open_bus, operations_of
from kingdom.bus import Topology
from kingdom.web.stream import LogStream
from tests.integration.web.streams import append, serving
from tests.patience import PATIENCE_SECONDS

TAIL = (sys.executable, "-m", "kingdom", "bus", "tail", "--from", "start")


async def test_tail_says_that_a_server_does_not_answer_and_tries_again(tmp_path: Path) -> None:
    url = "http://127.0.0.1:1"
    process = await asyncio.create_subprocess_exec(
        *TAIL, "--url", url, cwd=tmp_path, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr
        note = await asyncio.wait_for(process.stderr.readline(), PATIENCE_SECONDS)
        assert note.startswith(f"cannot reach {url} (".encode())
        assert note.endswith(b"), trying again\n")
        assert process.returncode is None
    finally:
        process.kill()
        await process.wait()


async def run(directory: Path, *arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *TAIL, *arguments, cwd=directory, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, error = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    return process.returncode or 0, out.decode(), error.decode()


async def test_tail_reads_the_stream_of_a_server_and_reports_a_refused_request(tmp_path: Path) -> None:
    (tmp_path / "token.txt").write_text("very-secret\n")
    given: list[str | None] = []

    async with open_bus(f"file:{tmp_path}/realm", Topology([])) as bus:
        await append(bus, "TaskStarted", "Other")
        stream = LogStream(operations_of(bus), registry=CollectorRegistry())

        async def check(request: web.Request) -> None:
            given.append(request.headers.get("Authorization"))
            if given[-1] is None:
                raise web.HTTPUnauthorized(text="sign in")

        async with serving(stream, check=check) as url:
            token = ("--token-file", "token.txt")
            code, out, _ = await run(tmp_path, "--url", url, *token, "--limit", "2", "--json")
            assert code == 0
            assert [json.loads(line)["type"] for line in out.splitlines()] == ["TaskStarted", "Other"]
            assert given == ["Bearer very-secret"]
            code, _, error = await run(tmp_path, "--url", url, "--limit", "2")
            assert code == 1
            assert "refuses this stream (401" in error
