"""An agent that runs as a program and takes one turn at a time; it is killed if an interrupted turn does not end."""

import asyncio
import math
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import timedelta
from itertools import chain, repeat
from typing import Generic, TypeVar

from kingdom.soldiers.agents.port import Agent, AgentFailed, AgentGone, Prompt, TurnAnswer, TurnQuestion, TurnUpdate
from kingdom.soldiers.agents.recorded_turn import RecordedTurn
from kingdom.soldiers.processes.program import Program

# An interrupt is repeated after these pauses, because the agent may miss it before it has begun with the prompt. The
# pauses grow, so that few interrupts pile up in a slow agent. Every later pause is as long as the last one.
_PAUSES_SECONDS = (0.2, 0.4, 0.8, 1.6, 2.0)
# An agent that has not ended its interrupted turn after this long is killed.
_INTERRUPT_LIMIT = timedelta(seconds=30)

T = TypeVar("T", bound=RecordedTurn)


class ProgramAgent(Agent, Generic[T]):
    """An agent that runs as a program; subclasses implement the protocol of the program."""

    # Whether the program ends when its input is closed.
    _ends_with_input = True
    # The program may handle an interrupt this long after it was sent, and would then end the next turn.
    _late_interrupt_seconds = 0.0

    def __init__(self, program: Program, session: str) -> None:
        self.session = session
        self.pid = program.pid
        self._program = program
        # The turn whose updates the caller reads, and the turn that the agent works on. They differ after an interrupt.
        self._awaited_turn: T | None = None
        self._turn: T | None = None
        self._interrupt_sent_at = -math.inf
        self._stopping = False

    async def send(self, prompt: Prompt) -> AsyncGenerator[TurnUpdate, None]:
        """Yield the updates of the turn as they arrive."""
        if self._awaited_turn is not None:
            busy = self._awaited_turn.prompt.id
            raise AgentFailed(f"prompt {prompt.id} is refused: the agent is busy with {busy}; wait for its end")
        turn = self._awaited_turn = self._new_turn(prompt)
        try:
            if self._turn is not None:
                # The previous turn must be over first; otherwise the agent might treat both prompts as one.
                await self._turn.over.wait()
                await asyncio.sleep(self._interrupt_sent_at + self._late_interrupt_seconds - time.monotonic())
            if self._stopping or not self._program.running:
                raise AgentGone(await self.wait_for_end())
            self._turn = turn
            await self._begin_or_give_up(turn)
            while self._awaited_turn is turn:
                update = await turn.next()
                if isinstance(update, TurnAnswer | TurnQuestion):
                    self._awaited_turn = None
                yield update
        finally:
            if self._awaited_turn is turn:
                self._awaited_turn = None
            if self._turn is not turn:
                # The agent never received the prompt, so there is nothing to interrupt.
                turn.over.set()
            elif not turn.over.is_set():
                self._interrupt(turn)

    async def interrupt(self) -> None:
        """Ask the agent to end its turn."""
        if self._awaited_turn is not None:
            self._interrupt(self._awaited_turn)

    async def stop(self, grace: timedelta) -> None:
        """Wait for the end of the turn, close the agent's input, wait for its exit, then kill it."""
        self._stopping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(grace.total_seconds()):
                if self._turn is not None:
                    await self._turn.over.wait()
                if self._ends_with_input:
                    self._program.close_input()
                    await self._program.wait()
        await self._program.kill()
        await self._wait_for_cleanup()
        if self._turn is not None and self._turn.interrupting is not None:
            await asyncio.wait([self._turn.interrupting])

    async def wait_for_end(self) -> str:
        """Wait until the process exits; return its exit code and the last part of its standard error."""
        how = self._program.describe_exit(await self._program.wait())
        words = await asyncio.to_thread(self._program.stderr_tail)
        return f"{how}; its last output: {words}" if words else how

    @abstractmethod
    def _new_turn(self, prompt: Prompt) -> T:
        """Return a turn for a prompt that has not been sent yet."""

    @abstractmethod
    async def _begin(self, turn: T) -> None:
        """Record the prompt and send it; if a person has not replied yet, end the turn with the question again."""

    @abstractmethod
    async def _ask_for_end(self) -> None:
        """Ask the agent once to end its turn."""

    @abstractmethod
    async def _wait_for_cleanup(self) -> None:
        """Wait until everything is cleaned up after the program's exit."""

    async def _begin_or_give_up(self, turn: T) -> None:
        try:
            await self._begin(turn)
        except BaseException as error:
            # The agent did not receive the prompt.
            turn.over.set()
            if isinstance(error, OSError):
                raise AgentFailed(f"the prompt was not sent: its transcript cannot be written ({error})") from error
            raise

    def _interrupt(self, turn: T) -> None:
        turn.interrupted = True
        self._ensure_end(turn)

    def _ensure_end(self, turn: T) -> None:
        """Make the agent end the turn, without marking the turn as interrupted by the caller."""
        if turn.interrupting is None and not turn.over.is_set():
            turn.interrupting = asyncio.create_task(
                self._interrupt_until_over(turn), name=f"interrupt of {turn.prompt.id}"
            )

    async def _interrupt_until_over(self, turn: T) -> None:
        """Repeat the interrupt until the turn is over; kill an agent that does not react."""
        try:
            async with asyncio.timeout(_INTERRUPT_LIMIT.total_seconds()):
                for pause in chain(_PAUSES_SECONDS, repeat(_PAUSES_SECONDS[-1])):
                    if turn.over.is_set():
                        break
                    if self._turn is turn:
                        self._interrupt_sent_at = time.monotonic()
                        await self._ask_for_end()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await turn.over.wait()
        except TimeoutError:
            await self._program.kill()
