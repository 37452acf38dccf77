"""Start the scripted agent as a process and exchange messages with it, one per line."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial

from kingdom.soldiers.agents.port import (
    Agent,
    AgentClient,
    AgentFailed,
    AgentGone,
    CostUpdate,
    Inspection,
    Launch,
    Prompt,
    TurnAnswer,
    TurnFailed,
    TurnQuestion,
    TurnUpdate,
    UsageLimited,
    return_when_ready,
)
from kingdom.soldiers.agents.scripted import wire
from kingdom.soldiers.agents.scripted.history import inspect_entries
from kingdom.soldiers.agents.scripted.session import open_session
from kingdom.soldiers.agents.transcript import TranscriptEntry, append_entry, inspect_transcript
from kingdom.soldiers.processes.program import Program, start_program
from kingdom.soldiers.unreadable_json import UNREADABLE_JSON

_PROGRAM_MODULE = "kingdom.soldiers.agents.scripted.program"
_WRITE_FAILED = "its transcript cannot be written: "


class ScriptedAgentClient(AgentClient):
    """Runs scripted agents, which ignore MCP servers.

    `contained` is whether an agent without a sandbox runs in its own pid namespace; by default it does if bubblewrap is
    installed.
    """

    name = "scripted"
    has_process = True
    takes_over_sessions = True

    def __init__(self, *, contained: bool | None = None) -> None:
        self._contained = contained

    async def start(self, launch: Launch) -> "ScriptedAgent":
        """Start the process and wait until it takes prompts."""
        transcript = launch.transcript.absolute()
        try:
            session = await asyncio.to_thread(
                open_session,
                transcript,
                soldier_id=launch.soldier_id,
                session=launch.session,
                model=launch.model,
                redaction=launch.redaction,
                earlier=launch.earlier_transcript,
            )
        except OSError as error:
            raise AgentGone(f"{_WRITE_FAILED}{error}") from error
        opening = wire.SessionOpening(session=session.id, transcript=str(transcript))
        sandbox = launch.sandbox
        if sandbox is not None:
            sandbox = replace(sandbox, readable=(*sandbox.readable, transcript))
        program = await start_program(
            # In isolated mode (-I) no file in the WorkSpace can replace a module of Python or Kingdom.
            [sys.executable, "-I", "-m", _PROGRAM_MODULE, wire.encode(opening).decode()],
            cwd=launch.work_space,
            environment=launch.environment,
            errors=launch.errors,
            redaction=launch.redaction,
            contained=self._contained,
            sandbox=sandbox,
        )
        write = partial(append_entry, transcript, redaction=launch.redaction)
        agent = ScriptedAgent(program, write)
        return await return_when_ready(agent, agent.wait_until_ready())

    async def inspect(self, launch: Launch, prompt_id: str) -> Inspection:
        """Look up the prompt in the transcript."""
        return await asyncio.to_thread(inspect_transcript, launch.transcript, prompt_id, inspect_entries)


class ScriptedAgent(Agent):
    """A running scripted agent."""

    def __init__(self, program: Program, write: Callable[[TranscriptEntry], None]) -> None:
        self.session = ""
        self.pid = program.pid
        self._program = program
        self._write = write
        self._write_failure = ""
        self._prompt_id: str | None = None
        self._messages: asyncio.Queue[wire.UpdateMessage | wire.FailureMessage | None] = asyncio.Queue()
        self._ready = asyncio.Event()
        self._listening = asyncio.create_task(self._listen(), name=f"scripted agent {self.pid}")

    async def wait_until_ready(self) -> None:
        """Wait until the agent takes prompts; raises AgentGone if it ends before that."""
        await self._ready.wait()
        if not self.session:
            raise AgentGone(f"the scripted agent failed to start: {await self.wait_for_end()}")

    async def send(self, prompt: Prompt) -> AsyncGenerator[TurnUpdate, None]:
        """Yield the updates of the turn as they arrive."""
        if self._prompt_id is not None:
            raise AgentFailed(
                f"prompt {prompt.id} is refused: the agent is busy with {self._prompt_id}; wait for its end"
            )
        if self._listening.done():
            raise AgentGone(await self.wait_for_end())
        self._prompt_id = prompt.id
        cost_usd, finished = 0.0, False
        try:
            self._program.write(wire.encode(wire.PromptMessage(prompt)) + b"\n")
            while not finished:
                update = await self._next_update(prompt.id, cost_usd)
                if isinstance(update, CostUpdate):
                    cost_usd = update.cost_usd
                finished = isinstance(update, TurnAnswer | TurnQuestion)
                if finished:
                    self._prompt_id = None
                yield update
        except TurnFailed:
            finished = True
            raise
        finally:
            if not finished:
                self._interrupt(prompt.id)
            if self._prompt_id == prompt.id:
                self._prompt_id = None

    async def interrupt(self) -> None:
        """Ask the agent to end its turn."""
        if self._prompt_id is not None:
            self._interrupt(self._prompt_id)

    async def stop(self, grace: timedelta) -> None:
        """Close the input of the agent, wait for its end, then kill it."""
        if grace > timedelta():
            self._program.close_input()
            with suppress(TimeoutError):
                async with asyncio.timeout(grace.total_seconds()):
                    await self._program.wait()
        await self._program.kill()
        await asyncio.wait([self._listening])

    async def wait_for_end(self) -> str:
        """Wait until the process exits; return its exit code and the last part of its standard error."""
        how = self._program.describe_exit(await self._program.wait()) + self._write_failure
        words = await asyncio.to_thread(self._program.stderr_tail)
        return f"{how}; its last output: {words}" if words else how

    async def _next_update(self, prompt_id: str, cost_usd: float) -> TurnUpdate:
        while (message := await self._messages.get()) is not None:
            # Messages of an earlier, abandoned turn may still arrive.
            if message.prompt_id != prompt_id:
                continue
            if isinstance(message, wire.FailureMessage) and message.until:
                raise UsageLimited(message.reason, message.until, message.cost_usd)
            if isinstance(message, wire.FailureMessage):
                raise AgentFailed(message.reason, message.cost_usd)
            return message.update
        raise AgentGone(await self.wait_for_end(), cost_usd)

    async def _listen(self) -> None:
        try:
            async for line in self._program.lines():
                match wire.decode_for_client(line):
                    case wire.AgentReady(session=session):
                        self.session = session
                        self._ready.set()
                    case wire.EntryToWrite(entry=entry):
                        await asyncio.to_thread(self._write, entry)
                        self._program.write(wire.encode(wire.EntryWritten()) + b"\n")
                    case message:
                        self._messages.put_nowait(message)
        except UNREADABLE_JSON:
            # The line is invalid, or it is incomplete because the agent has ended. Either way the agent is unusable.
            await self._program.kill()
        except OSError as error:
            self._write_failure = f", since {_WRITE_FAILED}{error}"
            await self._program.kill()
        finally:
            self._ready.set()
            self._messages.put_nowait(None)

    def _interrupt(self, prompt_id: str) -> None:
        self._program.write(wire.encode(wire.InterruptMessage(prompt_id)) + b"\n")
