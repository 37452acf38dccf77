"""The stand-in for Jira as tests reach it: by plain requests, by the official client, and as a program."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
from jira import JIRA

from kingdom.standins.jira.application import EMAIL, TOKEN
from tests.patience import PATIENCE_SECONDS


class Site:
    """A running stand-in, with actions of people."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        async with self.session.request(method, f"{self.url}/rest/api/{path}", **options) as answer:
            return answer.status, json.loads(await answer.read() or "null")

    async def search(self, jql: str, **parameters: Any) -> tuple[int, Any]:
        return await self.ask("GET", "3/search/jql", params={"jql": jql, **parameters})

    async def people(self, path: str, **doing: Any) -> Any:
        async with self.session.post(f"{self.url}/_control/{path}", json=doing) as answer:
            assert answer.status in (200, 201), await answer.text()
            return await answer.json()

    async def tickets(self, count: int) -> list[str]:
        """Open tickets, one a minute from ten o'clock."""
        opened = []
        for number in range(count):
            at = f"2026-02-07T10:{number:02d}:00Z"
            opened.append(await self.people("tickets", project="QP", summary=f"Ticket {number}", assignee="me", at=at))
        return [ticket["key"] for ticket in opened]

    async def faults(self, **fault: Any) -> None:
        async with self.session.post(f"{self.url}/_control/faults", json=[fault]) as answer:
            assert await answer.json() == {"added": 1}

    async def calls(self) -> list[str]:
        async with self.session.get(f"{self.url}/_control/calls") as answer:
            return [call["call"] for call in await answer.json()]


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        headers={"Authorization": aiohttp.encode_basic_auth(EMAIL, TOKEN)},
        timeout=aiohttp.ClientTimeout(total=PATIENCE_SECONDS),
    )


@asynccontextmanager
async def official(site: Site, version: str = "2") -> AsyncIterator[JIRA]:
    options: dict[str, Any] = {"rest_api_version": version}
    client = await asyncio.to_thread(JIRA, site.url, options, basic_auth=(EMAIL, TOKEN), max_retries=0)
    with closing(client):
        yield client


@asynccontextmanager
async def program(state: Path) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kingdom.standins.jira", "--state", str(state)), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_SECONDS)
        yield json.loads(line)["url"], process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
