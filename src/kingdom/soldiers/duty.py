"""What a host is doing: one task per accepted command, and how agents are ended for good."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from weakref import WeakValueDictionary

import structlog

from kingdom.bus.port import Bus
from kingdom.bus.record import Record
from kingdom.errors import KingdomError
from kingdom.soldiers.agent import AgentClient, AgentGone
from kingdom.soldiers.agents import Agents, Session
from kingdom.soldiers.answering import Tools, answer, failure
from kingdom.soldiers.briefing import Briefing
from kingdom.soldiers.errands import ERRANDS, GRACE
from kingdom.soldiers.folders import Folders
from kingdom.soldiers.quarters import Quarters
from kingdom.soldiers.reporter import Reporter, Statement
from kingdom.soldiers.trees import Tree, Trees
from kingdom.workflow.model.messages import answers, commands
from kingdom.workflow.model.messages.commands import HostCommand

# A cancelled agent may note that it was interrupted, and is killed then.
_SHORT_GRACE = timedelta(milliseconds=200)
_AT_ONCE = timedelta()
_Stop = commands.StopAgent | commands.InterruptAgent
_TURNS = (commands.SendQuery, commands.GenerateReport)
_WITH_AGENT = (commands.StartAgent, *_TURNS)
_log = structlog.get_logger("kingdom.soldiers")


@dataclass(slots=True, eq=False)
class _Doing:
    briefing: Briefing[HostCommand]
    task: asyncio.Task[None]

    @property
    def command(self) -> HostCommand:
        return self.briefing.command


class Duty:
    """Executes commands, each as a task of its own, which ends in a statement unless it is ended on purpose."""

    def __init__(
        self,
        client: AgentClient,
        folders: Folders,
        reporter: Reporter,
        *,
        slots: int,
        environment: Mapping[str, str],
        quarters: Quarters,
        bus: Bus,
    ) -> None:
        self._reporter = reporter
        self._agents = Agents(client, slots, self._agent_gone)
        self._tools = Tools(
            folders=folders,
            trees=Trees(folders.repositories, home=folders.directory, use=quarters.git_use),
            agents=self._agents,
            environment=environment,
            quarters=quarters,
            bus=bus,
            say=reporter.say,
        )
        self._doing: dict[str, _Doing] = {}
        self._stops: dict[str, _Stop] = {}
        # A lock stays for as long as somebody holds it or waits for it.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._open = True

    @property
    def busy(self) -> int:
        """Return how many agents run or wait for a slot."""
        return self._agents.busy

    @property
    def is_idle(self) -> bool:
        """Tell whether nothing is being done."""
        return not self._doing and not self._agents.busy

    def knows(self, accepted_id: str) -> bool:
        """Tell whether an accepted command is being executed, or its answer is on its way."""
        return accepted_id in self._doing or accepted_id in self._reporter.closing()

    def begin(self, briefing: Briefing[Any]) -> None:
        """Execute a command; what comes after the end of all is given up with the rest."""
        if not self._open:
            return
        task = asyncio.create_task(self._execute(briefing), name=f"kingdom-{type(briefing.command).__name__}")
        self._doing[briefing.accepted.id] = _Doing(briefing, task)
        task.add_done_callback(lambda _: self._doing.pop(briefing.accepted.id, None))

    def refuse(self, command: HostCommand, accepted: Record, error: KingdomError) -> None:
        """Say that a command cannot be executed."""
        said = failure(command, error)
        self._reporter.say(Statement(workflow_id=command.workflow_id, answers=said, closes=(accepted,)))

    @property
    def is_open(self) -> bool:
        """Tell whether commands are taken."""
        return self._open

    def reopen(self) -> None:
        """Take commands again, after the end of all."""
        self._open = True

    async def clear(self, workflow_id: str, left_of: Callable[[str], Awaitable[Sequence[Tree] | None]]) -> None:
        """Remove all that is here of a run and the checkouts that are `left_of` it; None, or work on it, keeps all."""
        async with self._turn(workflow_id):
            trees = await left_of(workflow_id)
            if trees is None or self._is_at(workflow_id):
                return
            for tree in trees:
                await self._tools.trees.release(tree, f"{workflow_id}/left")
            if not self._is_at(workflow_id):
                self._forget_run(workflow_id)
                await self._tools.folders.remove_run(workflow_id)

    def _is_at(self, workflow_id: str) -> bool:
        doing = any(doing.command.workflow_id == workflow_id for doing in self._doing.values())
        return doing or bool(self._agents.of(workflow_id))

    async def end_all(self) -> None:
        """End every agent and every command at once; nothing is said about them, and nothing begins any more."""
        self._open = False
        await self._abandon(self._doing.values(), self._agents.all())

    async def _execute(self, briefing: Briefing[Any]) -> None:
        command = briefing.command
        try:
            await self._end_earlier_placement(command)
            if isinstance(command, _Stop):
                statement = await self._end_agent(briefing)
            elif self._is_overtaken(command):
                statement = Statement(workflow_id=command.workflow_id, closes=(briefing.accepted,))
            else:
                self._forget_stops(briefing)
                async with nullcontext() if isinstance(command, _WITH_AGENT) else self._turn(command.workflow_id):
                    statement = await ERRANDS[type(command)](self._tools, briefing)
        except Exception as error:  # noqa: BLE001 - whatever it was, the run shall fail with it, not hang
            statement = _failed(briefing, error)
        self._reporter.say(statement)

    def _turn(self, workflow_id: str) -> asyncio.Lock:
        """Return what lets all that changes the checkouts of one run happen one after another."""
        return self._turns.setdefault(workflow_id, asyncio.Lock())

    async def _end_earlier_placement(self, command: HostCommand) -> None:
        """End what an earlier placement of the run left here."""
        earlier = [
            doing
            for doing in self._doing.values()
            if doing.command.workflow_id == command.workflow_id and doing.command.epoch < command.epoch
        ]
        agents = [session for session in self._agents.of(command.workflow_id) if session.epoch < command.epoch]
        if earlier or agents:
            await self._abandon(earlier, agents)
            closes = tuple(doing.briefing.accepted for doing in earlier if doing.task.cancelled())
            self._reporter.say(Statement(workflow_id=command.workflow_id, closes=closes))

    def _is_overtaken(self, command: HostCommand) -> bool:
        """Tell whether the agent that a command needs was ended before the command could begin."""
        stop = self._stops.get(getattr(command, "work_id", ""))
        return stop is not None and _is_about(command, stop)

    def _forget_stops(self, briefing: Briefing[Any]) -> None:
        """Forget what can overtake nothing any more: a later agent, or the end of a Work or run, is under way."""
        command = briefing.command
        if isinstance(command, commands.StartAgent | commands.TakeCheckpoint):
            self._stops.pop(command.work_id, None)
        elif briefing.ended:
            self._forget_run(command.workflow_id)

    def _forget_run(self, workflow_id: str) -> None:
        self._stops = {work: stop for work, stop in self._stops.items() if stop.workflow_id != workflow_id}

    async def _end_agent(self, briefing: Briefing[_Stop]) -> Statement:
        """End the agent of a Work and all that is done with it, and say so once nothing of it runs."""
        command = briefing.command
        self._stops[command.work_id] = command
        others = [doing for doing in self._doing.values() if _is_about(doing.command, command)]
        gentle = isinstance(command, commands.StopAgent)
        for doing in others:
            # An answer that is near counts when there is time; a start or a check has none.
            if not (gentle and isinstance(doing.command, _TURNS)):
                doing.task.cancel()
        session = self._agents.find(command.work_id)
        if session and session.attempt <= command.attempt:
            if not gentle:
                await _interrupt(session)
            # Without a turn there is nothing to finish.
            busy = any(isinstance(doing.command, _TURNS) for doing in others)
            await self._agents.end(session, GRACE if gentle and busy else _SHORT_GRACE)
        if others:
            await asyncio.wait([doing.task for doing in others])
        closes = (briefing.accepted, *(doing.briefing.accepted for doing in others if doing.task.cancelled()))
        return Statement(
            workflow_id=command.workflow_id, answers=(answer(command, answers.AgentStopped),), closes=closes
        )

    async def _abandon(self, doings: Collection[_Doing], sessions: Collection[Session]) -> None:
        doings = list(doings)
        tasks = [doing.task for doing in doings]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*(self._agents.end(session, _AT_ONCE) for session in sessions))
        if tasks:
            await asyncio.wait(tasks)
        # A start may have come up while it was cancelled.
        late = [each for each in self._agents.all() if any(each.start is doing.command for doing in doings)]
        await asyncio.gather(*(self._agents.end(session, _AT_ONCE) for session in late))

    async def _agent_gone(self, session: Session, reason: str) -> None:
        turns = [
            doing.task
            for doing in self._doing.values()
            if isinstance(doing.command, _TURNS) and doing.command.work_id == session.work_id
        ]
        if turns:
            # It tells what it has cost: with the end of the agent the run may end, and its costs are added up.
            await asyncio.wait(turns)
        if self._open:
            said = answer(session.start, answers.AgentError, error=reason)
            self._reporter.say(Statement(workflow_id=session.workflow_id, answers=(said,)))


async def _interrupt(session: Session) -> None:
    try:
        await session.agent.interrupt()
    except Exception as error:  # noqa: BLE001 - it is ended next anyway
        _log.info("agent not interrupted", work=session.work_id, error=str(error))


def _failed(briefing: Briefing[Any], error: Exception) -> Statement:
    command = briefing.command
    if not isinstance(error, KingdomError | OSError):
        _log.error("command failed", command=type(command).__name__, workflow=command.workflow_id, exc_info=error)
    # Of an agent that ended its watch tells; one that never came up has no watch.
    told = isinstance(error, AgentGone) and not isinstance(command, commands.StartAgent)
    said = () if told else failure(command, error)
    return Statement(workflow_id=command.workflow_id, answers=said, closes=(briefing.accepted,))


def _is_about(command: HostCommand, stop: _Stop) -> bool:
    """Tell whether a command needs the agent that is to end."""
    if getattr(command, "work_id", None) != stop.work_id:
        return False
    if isinstance(command, commands.StartAgent):
        return command.attempt <= stop.attempt
    return getattr(command, "agent_attempt", stop.attempt + 1) <= stop.attempt
