"""An agent inside this process that follows scripts as the scripted agent does, without a process start."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import NoReturn

from kingdom.soldiers.agents.port import (
    Agent,
    AgentClient,
    AgentFailed,
    AgentGone,
    Inspection,
    Launch,
    Prompt,
    TurnAnswer,
    TurnFailed,
    TurnQuestion,
    TurnUpdate,
)
from kingdom.soldiers.agents.scripted.history import inspect_entries
from kingdom.soldiers.agents.scripted.session import ScriptedSession, open_session
from kingdom.soldiers.agents.scripted.turn import ScriptedContext, ScriptedTurn
from kingdom.soldiers.agents.transcript import read_entries
from kingdom.soldiers.processes.process_table import describe_exit
from kingdom.workflow.model.messages.answers import TranscriptFinding


class InstantAgents(AgentClient):
    """Creates agents without a process; their transcripts are not synced to the disk."""

    name = "instant"
    has_process = False

    async def start(self, launch: Launch) -> "InstantAgent":
        session = open_session(
            launch.transcript,
            soldier_id=launch.soldier_id,
            session=launch.session,
            model=launch.model,
            durable=False,
        )
        return InstantAgent(session, launch)

    async def inspect(self, launch: Launch, prompt_id: str) -> Inspection:
        if not launch.transcript.exists():
            return Inspection(finding=TranscriptFinding.NO_TRANSCRIPT)
        return inspect_entries(read_entries(launch.transcript), prompt_id)


class InstantAgent(Agent):
    """An agent that runs in this event loop."""

    def __init__(self, session: ScriptedSession, launch: Launch) -> None:
        self.session = session.id
        self.pid = None
        self._session = session
        self._body = ScriptedContext(
            work_space=launch.work_space, environment=launch.environment, crash=_crash, block_forever=_refuse_to_block
        )
        self._prompt_id: str | None = None
        self._turn: asyncio.Task[None] | None = None
        self._stopping = False
        self._why = ""
        self._gone = asyncio.Event()

    async def send(self, prompt: Prompt) -> AsyncGenerator[TurnUpdate, None]:
        if self._stopping:
            raise AgentGone(await self.wait_for_end())
        if self._prompt_id is not None:
            raise AgentFailed(f"prompt {prompt.id} is refused: the agent is busy with {self._prompt_id}")
        received: asyncio.Queue[TurnUpdate | TurnFailed] = asyncio.Queue()
        self._prompt_id = prompt.id
        turn = self._turn = asyncio.create_task(self._play(prompt, received))
        try:
            while self._prompt_id == prompt.id:
                message = await received.get()
                if isinstance(message, TurnFailed):
                    raise message
                if isinstance(message, TurnAnswer | TurnQuestion):
                    self._prompt_id = None
                yield message
        finally:
            if self._prompt_id == prompt.id:
                self._prompt_id = None
            turn.cancel()

    async def interrupt(self) -> None:
        if self._turn is not None:
            # A task that is cancelled before its first step would send no failure.
            asyncio.get_running_loop().call_soon(self._turn.cancel)

    async def stop(self, grace: timedelta) -> None:
        self._stopping = True
        if self._turn is not None:
            await asyncio.wait([self._turn], timeout=grace.total_seconds())
            if not self._turn.done():
                self._end(describe_exit(-9))
                self._turn.cancel()
                await asyncio.wait([self._turn])
        self._end(describe_exit(0))

    async def wait_for_end(self) -> str:
        await self._gone.wait()
        return self._why

    async def _play(self, prompt: Prompt, received: asyncio.Queue[TurnUpdate | TurnFailed]) -> None:
        turn = ScriptedTurn(self._session, self._body, prompt)
        try:
            async for update in turn.execute():
                received.put_nowait(update)
        except AgentFailed as failure:
            received.put_nowait(failure)
        except _Crashed as crash:
            self._end(describe_exit(crash.code))
            received.put_nowait(AgentGone(self._why, turn.cost_usd))
        except asyncio.CancelledError:
            gone = AgentGone(self._why, turn.cost_usd)
            received.put_nowait(gone if self._why else AgentFailed("the turn was interrupted", turn.cost_usd))

    def _end(self, why: str) -> None:
        self._stopping = True
        self._why = self._why or why
        self._gone.set()


class _Crashed(Exception):
    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(code)


def _crash(code: int) -> NoReturn:
    raise _Crashed(code)


def _refuse_to_block() -> NoReturn:
    raise AgentFailed("an agent without its own process cannot stop reacting")
