"""The agents that run on this host: one per Work, and at most as many as there are slots."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta

import structlog

from kingdom.errors import KingdomError
from kingdom.failure_log import log_failure
from kingdom.soldiers.agents.port import Agent, AgentClient, AgentGone, Launch, SessionGone
from kingdom.workflow.model.messages.commands import StartAgent

_START_TRIES = 3
# The pause after the first failed start; it doubles after each further failure.
_START_PAUSE_SECONDS = 3.0
_STOP_PAUSE_SECONDS = 1.0
_log = structlog.get_logger("kingdom.soldiers")


@dataclass(slots=True, eq=False)
class AgentSession:
    """A running agent for one attempt of a Work; `start` is the command that started it.

    `resources` closes everything that was opened for the agent, such as its proxies, after its end. `ending` is set
    before the host stops the agent. `watch` is the task that waits for its end.
    """

    agent: Agent
    launch: Launch
    start: StartAgent
    resources: AsyncExitStack
    ending: bool = False
    watch: asyncio.Task[None] | None = None

    @property
    def work_id(self) -> str:
        """Return the id of the agent's Work."""
        return self.start.work_id

    @property
    def workflow_id(self) -> str:
        """Return the id of the agent's run."""
        return self.start.workflow_id

    @property
    def attempt(self) -> int:
        """Return the attempt of the Work."""
        return self.start.attempt

    @property
    def epoch(self) -> int:
        """Return the epoch of the placement under which the agent was started."""
        return self.start.epoch


class RunningAgents:
    """Starts and stops agents; calls `on_gone` for an agent that ended by itself."""

    def __init__(
        self,
        client: AgentClient,
        slots: int,
        on_gone: Callable[[AgentSession, str], Awaitable[None]],
        *,
        start_limit: timedelta = timedelta(seconds=60),
    ) -> None:
        self.client = client
        self._slots = asyncio.Semaphore(slots)
        self._on_gone = on_gone
        self._start_limit = start_limit
        self._sessions: dict[str, AgentSession] = {}
        self._works: dict[str, set[str]] = {}
        self._waiting = 0

    @property
    def busy(self) -> int:
        """Return how many agents run or wait for a slot."""
        return len(self._sessions) + self._waiting

    async def start(self, launch: Launch, command: StartAgent, resources: AsyncExitStack) -> AgentSession:
        """Start an agent as soon as a slot is free, with retries; raises AgentGone if it does not start."""
        self._waiting += 1
        try:
            await self._slots.acquire()
            try:
                agent = await self._start(launch)
            except BaseException:
                self._slots.release()
                raise
        finally:
            self._waiting -= 1
        session = self._sessions[command.work_id] = AgentSession(agent, launch, command, resources)
        self._works.setdefault(command.workflow_id, set()).add(command.work_id)
        session.watch = asyncio.create_task(self._watch(session), name=f"kingdom-agent-{command.work_id}")
        return session

    def find(self, work_id: str) -> AgentSession | None:
        """Return the running agent of a Work."""
        return self._sessions.get(work_id)

    def of_run(self, workflow_id: str) -> list[AgentSession]:
        """Return the running agents of a run."""
        return [self._sessions[work_id] for work_id in self._works.get(workflow_id, ())]

    def all(self) -> Collection[AgentSession]:
        """Return every running agent."""
        return list(self._sessions.values())

    async def end(self, session: AgentSession, grace: timedelta) -> None:
        """Stop an agent on purpose; return when none of its processes is left."""
        session.ending = True
        while True:
            try:
                await session.agent.stop(grace)
                break
            except Exception as error:  # noqa: BLE001 - stopping must be tried again, whatever the error is
                message = "an agent could not be stopped, trying again"
                log_failure(_log, message, error, expected=(KingdomError, OSError), work=session.work_id)
                grace = timedelta()
                await asyncio.sleep(_STOP_PAUSE_SECONDS)
        if session.watch:
            await asyncio.wait({session.watch})

    async def _start(self, launch: Launch) -> Agent:
        pause = _START_PAUSE_SECONDS
        for _ in range(_START_TRIES - 1):
            try:
                return await self._start_once(launch)
            except SessionGone:
                raise
            except AgentGone:
                await asyncio.sleep(pause)
                pause *= 2
        return await self._start_once(launch)

    async def _start_once(self, launch: Launch) -> Agent:
        seconds = self._start_limit.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                return await self.client.start(launch)
        except TimeoutError as error:
            raise AgentGone(f"the agent did not start within {seconds:g} s") from error

    async def _watch(self, session: AgentSession) -> None:
        reason = await session.agent.wait_for_end()
        await _close(session)
        if self._sessions.get(session.work_id) is session:
            del self._sessions[session.work_id]
            self._works[session.workflow_id].discard(session.work_id)
            if not self._works[session.workflow_id]:
                del self._works[session.workflow_id]
        self._slots.release()
        if not session.ending:
            await self._on_gone(session, reason)


async def _close(session: AgentSession) -> None:
    try:
        await session.resources.aclose()
    except Exception as error:  # noqa: BLE001 - the agent is gone all the same, and its slot is free
        message = "the resources of an agent could not be closed"
        log_failure(_log, message, error, expected=(KingdomError, OSError), work=session.work_id)
