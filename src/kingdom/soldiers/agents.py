"""The agents that run on this host, one per Work, never more than there are slots."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta

import structlog

from kingdom.soldiers.agent import Agent, AgentClient, AgentGone, Launch
from kingdom.workflow.model.messages.commands import StartAgent

_TRIES = 3
_PAUSE_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 3.0
_log = structlog.get_logger("kingdom.soldiers")


@dataclass(slots=True, eq=False)
class Session:
    """An agent that runs for one attempt of a Work; `ending` is set by whoever ends it on purpose.

    What was opened for it, such as its way out, is closed by `leaving` once it is gone.
    """

    agent: Agent
    launch: Launch
    start: StartAgent
    leaving: AsyncExitStack
    ending: bool = False
    watch: asyncio.Task[None] | None = None

    @property
    def work_id(self) -> str:
        """Return the Work that the agent runs for."""
        return self.start.work_id

    @property
    def workflow_id(self) -> str:
        """Return the run that the agent belongs to."""
        return self.start.workflow_id

    @property
    def attempt(self) -> int:
        """Return the attempt that the agent is."""
        return self.start.attempt

    @property
    def epoch(self) -> int:
        """Return the placement under which the agent was started."""
        return self.start.epoch


class Agents:
    """Starts and ends agents; tells `on_gone` of one that ended although nobody wanted it to."""

    def __init__(
        self,
        client: AgentClient,
        slots: int,
        on_gone: Callable[[Session, str], Awaitable[None]],
        *,
        start_limit: timedelta = timedelta(seconds=60),
    ) -> None:
        self.client = client
        self._slots = asyncio.Semaphore(slots)
        self._on_gone = on_gone
        self._start_limit = start_limit
        self._sessions: dict[str, Session] = {}
        self._works: dict[str, set[str]] = {}
        self._waiting = 0

    @property
    def busy(self) -> int:
        """Return how many agents run or wait for a slot."""
        return len(self._sessions) + self._waiting

    async def start(self, launch: Launch, command: StartAgent, leaving: AsyncExitStack) -> Session:
        """Start an agent as soon as a slot is free, more than once if need be; raises AgentGone if none comes up."""
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
        session = self._sessions[command.work_id] = Session(agent, launch, command, leaving)
        self._works.setdefault(command.workflow_id, set()).add(command.work_id)
        session.watch = asyncio.create_task(self._watch(session), name=f"kingdom-agent-{command.work_id}")
        return session

    def find(self, work_id: str) -> Session | None:
        """Return the agent that runs for a Work."""
        return self._sessions.get(work_id)

    def of(self, workflow_id: str) -> list[Session]:
        """Return the agents that run for a run."""
        return [self._sessions[work_id] for work_id in self._works.get(workflow_id, ())]

    def all(self) -> Collection[Session]:
        """Return every agent that runs here."""
        return list(self._sessions.values())

    async def end(self, session: Session, grace: timedelta) -> None:
        """End an agent on purpose; returns when nothing of it runs."""
        session.ending = True
        while True:
            try:
                await session.agent.stop(grace)
                break
            except Exception as error:  # noqa: BLE001 - an agent that cannot be ended now must be ended later
                _log.warning("agent not ended, trying again", work=session.work_id, error=str(error))
                grace = timedelta()
                await asyncio.sleep(_PAUSE_SECONDS)
        if session.watch:
            await asyncio.wait({session.watch})

    async def _start(self, launch: Launch) -> Agent:
        pause = _FIRST_PAUSE_SECONDS
        for _ in range(_TRIES - 1):
            try:
                return await self._start_once(launch)
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

    async def _watch(self, session: Session) -> None:
        reason = await session.agent.ended()
        await _close(session)
        if self._sessions.get(session.work_id) is session:
            del self._sessions[session.work_id]
            self._works[session.workflow_id].discard(session.work_id)
            if not self._works[session.workflow_id]:
                del self._works[session.workflow_id]
        self._slots.release()
        if not session.ending:
            await self._on_gone(session, reason)


async def _close(session: Session) -> None:
    try:
        await session.leaving.aclose()
    except Exception as error:  # noqa: BLE001 - the agent is gone all the same, and its slot is free
        _log.warning("what an agent had was not closed", work=session.work_id, error=str(error))
