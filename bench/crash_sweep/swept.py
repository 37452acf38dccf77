"""Wrappers around the bus, the agents and the programs of engine and host that count every durable step."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.crash_sweep import steps
from bench.crash_sweep.steps import Steps
from bench.wrapped_bus import WrappedBus
from kingdom.bus.delivery import Delivery
from kingdom.bus.port import Bus, Transaction
from kingdom.soldiers.agents.port import Agent, AgentClient, Inspection, Launch, Prompt, TurnUpdate

# If git dies with its host, it dies within this time after its start.
_GIT_LIVES_SECONDS = 0.004
# Commands of git that change nothing.
_READING = frozenset({"rev-parse", "merge-base", "ls-files", "for-each-ref", "show", "diff"})


class SweptBus(WrappedBus):
    """A bus whose commits and claims are steps. Reads are not."""

    def __init__(self, bus: Bus, step_counter: Steps) -> None:
        super().__init__(bus)
        self._steps = step_counter

    @asynccontextmanager
    async def transaction(
        self, hold: Sequence[Delivery] = (), *, optimistic: bool = False
    ) -> AsyncIterator[Transaction]:
        """Open a transaction. Its commit is a step if it writes anything."""
        async with self._bus.transaction(hold, optimistic=optimistic) as transaction:

            def committed() -> None:
                if words := _words(transaction):
                    self._steps.reach(steps.COMMIT_AFTER, words)

            # This callback comes before all others, so nothing that waits for the commit has begun.
            transaction.after_commit(committed)
            yield transaction
            if words := _words(transaction):
                self._steps.reach(steps.COMMIT_BEFORE, words)

    async def claim(self, stream: str, limit: int, worker: str) -> list[Delivery]:
        """Claim events. A claim that returns events is a step."""
        deliveries = await self._bus.claim(stream, limit, worker)
        if deliveries:
            types = "+".join(delivery.envelope.type for delivery in deliveries)
            self._steps.reach(steps.CLAIM_AFTER, f"{stream}: {types}")
        return deliveries


class SweptAgents(AgentClient):
    """A client whose calls, and all messages of its agents, are steps."""

    name = "swept"
    has_process = True

    def __init__(self, client: AgentClient, step_counter: Steps) -> None:
        self._client = client
        self._steps = step_counter

    async def start(self, launch: Launch) -> Agent:
        """Start an agent."""
        self._steps.reach(steps.AGENT_BEFORE, "start")
        agent = await self._client.start(launch)
        self._steps.reach(steps.AGENT_AFTER, "start")
        return _SweptAgent(agent, self._steps)

    async def inspect(self, launch: Launch, prompt_id: str) -> Inspection:
        """Look up a prompt."""
        return await self._client.inspect(launch, prompt_id)


class _SweptAgent(Agent):
    def __init__(self, agent: Agent, step_counter: Steps) -> None:
        self.session = agent.session
        self.pid = agent.pid
        self._agent = agent
        self._steps = step_counter

    async def send(self, prompt: Prompt) -> AsyncGenerator[TurnUpdate, None]:
        self._steps.reach(steps.AGENT_BEFORE, "send")
        async with aclosing(self._agent.send(prompt)) as turn:
            async for update in turn:
                self._steps.reach(steps.AGENT_UPDATE, type(update).__name__)
                if self.pid:
                    self._steps.reach_and_kill(steps.AGENT_KILLED, type(update).__name__, self.pid)
                yield update

    async def interrupt(self) -> None:
        await self._agent.interrupt()

    async def stop(self, grace: timedelta) -> None:
        self._steps.reach(steps.AGENT_BEFORE, "stop")
        await self._agent.stop(grace)
        self._steps.reach(steps.AGENT_AFTER, "stop")

    async def wait_for_end(self) -> str:
        return await self._agent.wait_for_end()


class SweptLoop(asyncio.SelectorEventLoop):
    """An event loop that counts a step before, during and after every program."""

    def __init__(self, step_counter: Steps) -> None:
        super().__init__()
        self._steps = step_counter

    async def subprocess_exec(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], program: Any, *args: Any, **options: Any
    ) -> tuple[Any, Any]:
        """Run a program."""
        label = _verb(program, *args)

        def watched() -> asyncio.BaseProtocol:
            protocol: Any = protocol_factory()
            exited = protocol.process_exited

            def process_exited() -> None:
                self._steps.reach(steps.PROGRAM_AFTER, label)
                exited()

            protocol.process_exited = process_exited
            return protocol  # type: ignore[no-any-return] # the factory is untyped

        if label.removeprefix("git ") in _READING:
            return await super().subprocess_exec(protocol_factory, program, *args, **options)
        self._steps.reach(steps.PROGRAM_BEFORE, label)
        transport, protocol = await super().subprocess_exec(watched, program, *args, **options)
        if label.startswith("git "):
            number = self._steps.counts[steps.GIT_DURING]
            self._steps.reach(steps.GIT_DURING, label, lambda: _kill_soon(transport.get_pid(), number))
        else:
            self._steps.reach(steps.PROGRAM_DURING, label)
        return transport, protocol


def _words(transaction: Transaction) -> str:
    """Return the kind of a transaction's writes, or an empty string."""
    changes = transaction.changes
    if not (changes.puts or changes.copies or changes.settlements or changes.entries):
        return ""
    handled = {delivery.position: delivery.envelope.type for delivery in transaction.held}
    done = [handled.get(position, "?") for position in changes.settlements]
    published = [copy.envelope.type for copy in changes.copies.values()]
    kept = [f"{kind} {put.record.state}" for (kind, _), put in changes.puts.items()]
    return f"{'+'.join(done) or 'nothing'} -> {'+'.join([*published, *kept])}"


def _verb(program: Any, *args: Any) -> str:
    """Return the name of a program, with the subcommand for git."""
    words = [str(word) for word in (program, *args)]
    if Path(words[0]).name != "git":
        return Path(words[0]).name
    rest = words[1:]
    while rest and rest[0].startswith("-"):
        rest = rest[2:] if rest[0] == "-c" else rest[1:]
    return " ".join(["git", *rest[:1]])


def _kill_soon(pid: int, number: int) -> None:
    """Kill a git process after a delay that is fixed for each step."""
    time.sleep(_GIT_LIVES_SECONDS * (number % 8) / 8)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
