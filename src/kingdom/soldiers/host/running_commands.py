"""Execute the accepted commands of a host, one task each. Stopping an agent also ends the commands that need it."""

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
from kingdom.failure_log import log_failure
from kingdom.soldiers.agents.port import AgentClient
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec, RunCheckouts
from kingdom.soldiers.host.command_handlers import COMMAND_HANDLERS, GRACE
from kingdom.soldiers.host.command_input import CommandInput
from kingdom.soldiers.host.replies import HostContext, answer_to, failure_answers, failure_reply
from kingdom.soldiers.host.reporter import HostReply, Reporter
from kingdom.soldiers.host.running_agents import AgentSession, RunningAgents
from kingdom.soldiers.transcripts.copier import TranscriptCopier
from kingdom.soldiers.workplace.agent_environment import AgentEnvironment
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.storage.run_texts import RunTexts
from kingdom.workflow.model.messages import answers, commands
from kingdom.workflow.model.messages.commands import HostCommand

# In this time an interrupted agent can record its interruption before it is killed.
_SHORT_GRACE = timedelta(milliseconds=200)
_NO_GRACE = timedelta()
_Stop = commands.StopAgent | commands.InterruptAgent
_TURN_COMMANDS = (commands.SendQuery, commands.GenerateReport)
_AGENT_COMMANDS = (commands.StartAgent, *_TURN_COMMANDS)
_log = structlog.get_logger("kingdom.soldiers")


@dataclass(slots=True, eq=False)
class _RunningCommand:
    command_input: CommandInput[HostCommand]
    task: asyncio.Task[None]

    @property
    def command(self) -> HostCommand:
        return self.command_input.command


class RunningCommands:
    """Executes commands as one task each; a task ends with a reply unless it is cancelled."""

    def __init__(
        self,
        client: AgentClient,
        folders: HostFolders,
        reporter: Reporter,
        *,
        slots: int,
        environment: Mapping[str, str],
        agent_environment: AgentEnvironment,
        bus: Bus,
        texts: RunTexts | None = None,
        copier: TranscriptCopier | None = None,
    ) -> None:
        self._reporter = reporter
        self._agents = RunningAgents(client, slots, self._agent_gone)
        self._context = HostContext(
            folders=folders,
            checkouts=RunCheckouts(
                folders.repositories, home=folders.directory, git_policy=agent_environment.git_policy
            ),
            agents=self._agents,
            base_variables=environment,
            agent_environment=agent_environment,
            bus=bus,
            send=reporter.send,
            texts=texts,
            copier=copier,
        )
        self._running: dict[str, _RunningCommand] = {}
        # For each Work, the last command that stopped its agent.
        self._stops: dict[str, _Stop] = {}
        # The references are weak, so a lock exists only while it is held or awaited.
        self._run_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._open = True

    @property
    def busy(self) -> int:
        """Return how many agents run or wait for a slot."""
        return self._agents.busy

    @property
    def is_idle(self) -> bool:
        """Return whether no command and no agent is running."""
        return not self._running and not self._agents.busy

    def knows(self, accepted_id: str) -> bool:
        """Return whether an accepted command is running, or its reply is not stored yet."""
        return accepted_id in self._running or accepted_id in self._reporter.pending_command_ids()

    def begin(self, command_input: CommandInput[Any]) -> None:
        """Start a command; it is ignored after `end_all`."""
        if not self._open:
            return
        task = asyncio.create_task(self._execute(command_input), name=f"kingdom-{type(command_input.command).__name__}")
        self._running[command_input.accepted.id] = _RunningCommand(command_input, task)
        task.add_done_callback(lambda _: self._running.pop(command_input.accepted.id, None))

    def refuse(self, command: HostCommand, accepted: Record, error: KingdomError) -> None:
        """Reply that a command cannot be executed."""
        given_answers = failure_answers(command, error)
        self._reporter.send(HostReply(workflow_id=command.workflow_id, answers=given_answers, closes=(accepted,)))

    @property
    def is_open(self) -> bool:
        """Return whether new commands are started."""
        return self._open

    def reopen(self) -> None:
        """Allow new commands again after `end_all`."""
        self._open = True

    async def remove_run(
        self, workflow_id: str, find_removable: Callable[[str], Awaitable[Sequence[CheckoutSpec] | None]]
    ) -> None:
        """Remove the files of a run and the checkouts that `find_removable` returns.

        Nothing is removed if `find_removable` returns None or the run is busy.
        """
        async with self._run_lock(workflow_id):
            trees = await find_removable(workflow_id)
            if trees is None or self._is_busy_with(workflow_id):
                return
            for tree in trees:
                await self._context.checkouts.release(tree, f"{workflow_id}/left")
            if not self._is_busy_with(workflow_id):
                self._drop_stops_of_run(workflow_id)
                await self._context.folders.remove_run(workflow_id)

    def _is_busy_with(self, workflow_id: str) -> bool:
        running = any(running.command.workflow_id == workflow_id for running in self._running.values())
        return running or bool(self._agents.of_run(workflow_id))

    async def end_all(self) -> None:
        """Stop every agent and command at once, without replies, and start no more."""
        self._open = False
        await self._abandon(self._running.values(), self._agents.all())

    async def _execute(self, command_input: CommandInput[Any]) -> None:
        command = command_input.command
        try:
            await self._end_earlier_placement(command)
            if isinstance(command, _Stop):
                reply = await self._end_agent(command_input)
            elif self._agent_was_stopped(command):
                reply = HostReply(workflow_id=command.workflow_id, closes=(command_input.accepted,))
            else:
                self._drop_old_stops(command_input)
                without_lock = isinstance(command, _AGENT_COMMANDS)
                async with nullcontext() if without_lock else self._run_lock(command.workflow_id):
                    reply = await COMMAND_HANDLERS[type(command)](self._context, command_input)
        except Exception as error:  # noqa: BLE001 - whatever the error is, the run must fail instead of hang
            reply = failure_reply(command_input, error, self._context.agent_environment.redaction)
        self._reporter.send(reply)

    def _run_lock(self, workflow_id: str) -> asyncio.Lock:
        """Return the lock that serializes changes to the checkouts of one run."""
        return self._run_locks.setdefault(workflow_id, asyncio.Lock())

    async def _end_earlier_placement(self, command: HostCommand) -> None:
        """Stop agents and commands of an earlier placement of the run."""
        earlier = [
            running
            for running in self._running.values()
            if running.command.workflow_id == command.workflow_id and running.command.epoch < command.epoch
        ]
        agents = [session for session in self._agents.of_run(command.workflow_id) if session.epoch < command.epoch]
        if earlier or agents:
            await self._abandon(earlier, agents)
            closes = tuple(running.command_input.accepted for running in earlier if running.task.cancelled())
            self._reporter.send(HostReply(workflow_id=command.workflow_id, closes=closes))

    def _agent_was_stopped(self, command: HostCommand) -> bool:
        """Return whether the agent that a command needs was stopped before the command could start."""
        stop = self._stops.get(getattr(command, "work_id", ""))
        return stop is not None and _needs_agent(command, stop)

    def _drop_old_stops(self, command_input: CommandInput[Any]) -> None:
        """Drop entries of `_stops` when their Work gets a new agent or a checkpoint, or when their run has ended."""
        command = command_input.command
        if isinstance(command, commands.StartAgent | commands.TakeCheckpoint):
            self._stops.pop(command.work_id, None)
        elif command_input.may_remove_files:
            self._drop_stops_of_run(command.workflow_id)

    def _drop_stops_of_run(self, workflow_id: str) -> None:
        self._stops = {work: stop for work, stop in self._stops.items() if stop.workflow_id != workflow_id}

    async def _end_agent(self, command_input: CommandInput[_Stop]) -> HostReply:
        """Stop the agent of a Work and the commands that need it; reply once no process of the agent is left."""
        command = command_input.command
        self._stops[command.work_id] = command
        others = [running for running in self._running.values() if _needs_agent(running.command, command)]
        gentle = isinstance(command, commands.StopAgent)
        for running in others:
            # A turn may finish within the grace period. All other commands are cancelled.
            if not (gentle and isinstance(running.command, _TURN_COMMANDS)):
                running.task.cancel()
        session = self._agents.find(command.work_id)
        if session and session.attempt <= command.attempt:
            if not gentle:
                await _interrupt(session)
            # Without a turn the agent has nothing to finish.
            busy = any(isinstance(running.command, _TURN_COMMANDS) for running in others)
            await self._agents.end(session, GRACE if gentle and busy else _SHORT_GRACE)
        if others:
            await asyncio.wait([running.task for running in others])
        closes = (
            command_input.accepted,
            *(running.command_input.accepted for running in others if running.task.cancelled()),
        )
        return HostReply(
            workflow_id=command.workflow_id, answers=(answer_to(command, answers.AgentStopped),), closes=closes
        )

    async def _abandon(self, commands_to_end: Collection[_RunningCommand], sessions: Collection[AgentSession]) -> None:
        """Cancel commands and stop agents at once, without replies."""
        commands_to_end = list(commands_to_end)
        tasks = [running.task for running in commands_to_end]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*(self._agents.end(session, _NO_GRACE) for session in sessions))
        if tasks:
            await asyncio.wait(tasks)
        # An agent may have started while its command was cancelled.
        late = [
            each for each in self._agents.all() if any(each.start is running.command for running in commands_to_end)
        ]
        await asyncio.gather(*(self._agents.end(session, _NO_GRACE) for session in late))

    async def _agent_gone(self, session: AgentSession, reason: str) -> None:
        turns = [
            running.task
            for running in self._running.values()
            if isinstance(running.command, _TURN_COMMANDS) and running.command.work_id == session.work_id
        ]
        if turns:
            # The turn reports its cost first. The end of the agent may end the run, and then all costs must be known.
            await asyncio.wait(turns)
        if self._open:
            answer = answer_to(session.start, answers.AgentError, error=session.launch.redaction.text(reason))
            self._reporter.send(HostReply(workflow_id=session.workflow_id, answers=(answer,)))


async def _interrupt(session: AgentSession) -> None:
    try:
        await session.agent.interrupt()
    except Exception as error:  # noqa: BLE001 - the agent is stopped next anyway
        log_failure(_log, "agent not interrupted", error, expected=(KingdomError, OSError), work=session.work_id)


def _needs_agent(command: HostCommand, stop: _Stop) -> bool:
    """Return whether a command needs the agent that `stop` ends."""
    if getattr(command, "work_id", None) != stop.work_id:
        return False
    if isinstance(command, commands.StartAgent):
        return command.attempt <= stop.attempt
    return getattr(command, "agent_attempt", stop.attempt + 1) <= stop.attempt
