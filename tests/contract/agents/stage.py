"""A folder for one kind of agents, and the agents that a test starts there."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from kingdom.soldiers.agent_tools.host_tools import HostTools
from kingdom.soldiers.agents.port import Agent, AgentClient, CostUpdate, Launch, Prompt, TurnUpdate
from kingdom.soldiers.processes.process_table import process_state
from kingdom.soldiers.sandbox.sandbox import MODEL_PROXY_PORT, Sandbox
from tests.contract.agents.clients import Kind
from tests.fakes.model.stub import ModelStub
from tests.fakes.scripts import scripted
from tests.integration.running import eventually
from tests.integration.soldiers.processes import MARK, marked
from tests.patience import PATIENCE_SECONDS

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
AT_ONCE = timedelta()
A_WHILE = timedelta(seconds=PATIENCE_SECONDS)
# Some agents need ten seconds of a processor to start.
LONG_SECONDS = 2 * PATIENCE_SECONDS


class Stage:
    """Starts agents in one WorkSpace with one transcript, and ends them all."""

    def __init__(
        self,
        client: AgentClient,
        folder: Path,
        environment: Mapping[str, str] = ENVIRONMENT,
        *,
        kind: Kind | None = None,
        sandbox: Sandbox | None = None,
        url: str = "",
    ) -> None:
        self.client = client
        self.kind = kind or Kind(make=lambda: client)
        self.work_space = folder / "work space"
        self.work_space.mkdir(exist_ok=True)
        self.transcript = folder / "soldier-1-1.json"
        self.errors = folder / "soldier-1-1.err"
        self.environment = environment
        self.mark = environment.get(MARK, "")
        self.url = url
        self.model: ModelStub | None = None
        self._sandbox = sandbox
        self._agents: list[Agent] = []

    def launch(self, session: str | None = None, **options: Any) -> Launch:
        launch = Launch(
            soldier_id="soldier-1-1",
            work_space=self.work_space,
            model=self.kind.model,
            session=session,
            transcript=self.transcript,
            errors=self.errors,
            environment=self.environment,
            mcp_servers=(),
            sandbox=self._sandbox,
            tools=HostTools(self.work_space, _no_verdict) if self.kind.has_model else None,
        )
        return replace(launch, **options)

    async def start(self, session: str | None = None, **options: Any) -> Agent:
        agent = await asyncio.wait_for(self.client.start(self.launch(session, **options)), LONG_SECONDS)
        self._agents.append(agent)
        return agent

    async def close(self) -> None:
        for agent in self._agents:
            await asyncio.wait_for(agent.stop(AT_ONCE), PATIENCE_SECONDS)


@asynccontextmanager
async def open_stage(kind: Kind, folder: Path, mark: str = "") -> AsyncIterator[Stage]:
    """Provide a stage for a kind of agents, with a model if they need one; end all processes afterwards."""
    mark = mark or uuid4().hex
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(ModelStub(unix=folder / "model")) if kind.has_model else None
        stage = stage_for(kind, folder, mark, url=model.url if model else "")
        stage.model = model
        try:
            yield stage
        finally:
            await stage.close()

    async def gone() -> bool:
        return not marked(mark)

    await eventually(gone)


def stage_for(kind: Kind, folder: Path, mark: str, url: str) -> Stage:
    """Return a stage whose agents carry a mark and call the model at an address, if they need one."""
    environment = {**ENVIRONMENT, MARK: mark}
    sandbox = None
    if kind.has_model or kind.sandboxed:
        home = folder / "home"
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        reached = f"http://127.0.0.1:{MODEL_PROXY_PORT}" if kind.sandboxed else url
        found = {name: value.format(model=reached) for name, value in kind.environment.items()}
        environment |= {"HOME": str(home), "TMPDIR": str(home / "tmp"), **found}
        sandbox = kind.sandbox(folder / "work space", home, socket=folder / "model" if kind.has_model else None)
    return Stage(kind.make(), folder, environment, kind=kind, sandbox=sandbox, url=url)


async def _no_verdict(_: str) -> None:
    return None


async def updates_of(agent: Agent, prompt: Prompt) -> list[TurnUpdate]:
    """Return all updates of an agent for a prompt, except a cost that has not changed."""
    reported: list[TurnUpdate] = []
    spent = CostUpdate(0.0)
    async with asyncio.timeout(LONG_SECONDS):
        async for update in agent.send(prompt):
            if update == spent:
                continue
            spent = update if isinstance(update, CostUpdate) else spent
            reported.append(update)
    return reported


async def follow(agent: Agent, *steps: dict[str, Any], prompt_id: str = "w1-t1#1", **options: Any) -> list[TurnUpdate]:
    """Let an agent follow a script, and return its updates."""
    return await updates_of(agent, Prompt(id=prompt_id, text=scripted(*steps), **options))


def only(reported: Iterable[TurnUpdate], *kinds: type[TurnUpdate]) -> list[TurnUpdate]:
    """Return the updates of some kinds."""
    return [update for update in reported if isinstance(update, kinds)]


async def until_stopped(stage: Stage) -> None:
    """Wait until the process of an agent is stopped, if its script stops it."""

    async def stopped() -> bool:
        sought = f"{MARK}={stage.mark}".encode()
        processes = [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        return any(process_state(int(entry.name)) == b"T" and sought in _environment_of(entry) for entry in processes)

    if stage.kind.has_model:
        await eventually(stopped)


def _environment_of(process: Path) -> list[bytes]:
    with suppress(OSError):
        return (process / "environ").read_bytes().split(b"\0")
    return []


async def until_exists(path: Path) -> None:
    """Wait until a file exists."""

    async def there() -> bool:
        return path.exists()

    await eventually(there, LONG_SECONDS)
