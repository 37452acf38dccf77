"""The part of a host that serves the tools of one agent: it receives calls and records their effects."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from kingdom.soldiers.agent_tools.host_tools import HostTools
from kingdom.soldiers.agent_tools.relay import answer_tool_call
from kingdom.soldiers.sandbox.model_proxy import ModelProxy
from kingdom.workflow.past_results import PastResult
from kingdom.workflow.verdicts import PetitionVerdict

PAST_RESULTS = tuple(
    PastResult(
        assignment_id=f"task-20260101-{number:03d}",
        general="gen-pr",
        type="github.pr.comment",
        ended_at=datetime(2026, 1, 1, tzinfo=UTC),
        status="success",
        summary="The cache is stale.",
        repo="acme/shop",
    )
    for number in (1, 2)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolHost:
    """The address of the tools, and the petitions that were made."""

    tools: HostTools
    url: str
    socket: Path
    petitions: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


@asynccontextmanager
async def open_tool_host(
    space: Path, socket: Path, *, verdict: PetitionVerdict | None = None
) -> AsyncIterator[ToolHost]:
    """Serve the tools of the agent in a WorkSpace, for one turn."""

    async def decided(_: str) -> PetitionVerdict | None:
        return verdict

    async def past_results(count: int) -> list[PastResult]:
        return list(PAST_RESULTS[:count])

    tools = HostTools(space, decided, find_results=past_results)

    async with ModelProxy(socket, (), on_tool_call=partial(answer_tool_call, tools), on_loopback=True) as proxy:
        tool_host = ToolHost(tools=tools, url=f"{proxy.url}/voice", socket=socket)
        tools.begin("w1-t1#1", lambda kind, body: tool_host.petitions.append((kind, body)))
        yield tool_host
