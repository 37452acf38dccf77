"""Barriers that hold up a host's commits, and agents with shorter grace periods."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from bench.wrapped_bus import WrappedBus
from kingdom.bus import Bus, Delivery, Transaction
from kingdom.soldiers.agents.port import Agent, AgentClient, Inspection, Launch, Prompt, TurnUpdate
from kingdom.workflow.model.messages.commands import HostCommand
from kingdom.workflow.records import ACCEPTED, COMMANDS
from tests.patience import PATIENCE_SECONDS

BeforeCommit = Callable[[Transaction], Awaitable[None]]


def publishes(transaction: Transaction, event_type: str) -> bool:
    """Return whether a transaction publishes an event of a type."""
    return any(copy.envelope.type == event_type for copy in transaction.changes.copies.values())


def accepts(transaction: Transaction, command: type[HostCommand]) -> bool:
    """Return whether a transaction accepts a command of a type."""
    records = (put.record for put in transaction.changes.puts.values())
    return any(
        record.kind == COMMANDS.name and record.state == ACCEPTED and record.doc["type"] == command.__name__
        for record in records
    )


class BarredBus(WrappedBus):
    """A bus that calls a function before each commit. An error of the function rolls the transaction back."""

    def __init__(self, bus: Bus, before_commit: BeforeCommit) -> None:
        super().__init__(bus)
        self._before_commit = before_commit

    @asynccontextmanager
    async def transaction(
        self, hold: Sequence[Delivery] = (), *, optimistic: bool = False
    ) -> AsyncIterator[Transaction]:
        async with self._bus.transaction(hold, optimistic=optimistic) as transaction:
            yield transaction
            await self._before_commit(transaction)


class Barrier:
    """Blocks each transaction that `picks` selects until the test opens the barrier."""

    def __init__(self, picks: Callable[[Transaction], bool]) -> None:
        self._picks = picks
        self._reached = asyncio.Event()
        self._open = asyncio.Event()

    def wrap(self, bus: Bus) -> Bus:
        """Return a bus with this barrier in it."""
        return BarredBus(bus, self._hold)

    async def reached(self) -> None:
        """Wait until a transaction is blocked here."""
        await asyncio.wait_for(self._reached.wait(), PATIENCE_SECONDS)

    def open(self) -> None:
        """Open the barrier."""
        self._open.set()

    async def _hold(self, transaction: Transaction) -> None:
        if not self._open.is_set() and self._picks(transaction):
            self._reached.set()
            await asyncio.wait_for(self._open.wait(), PATIENCE_SECONDS)


class ImpatientAgents(AgentClient):
    """A client whose agents get only a moment to end. It counts how many ran at once."""

    name = "impatient"
    has_process = True

    def __init__(self, client: AgentClient, grace: timedelta = timedelta(milliseconds=300)) -> None:
        self._client = client
        self._grace = grace
        self._running = 0
        self.most_at_once = 0

    async def start(self, launch: Launch) -> Agent:
        agent = _ImpatientAgent(await self._client.start(launch), self._grace)
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        agent.when_ended(self._ended)
        return agent

    async def inspect(self, launch: Launch, prompt_id: str) -> Inspection:
        return await self._client.inspect(launch, prompt_id)

    def _ended(self, _: Any) -> None:
        self._running -= 1


class _ImpatientAgent(Agent):
    def __init__(self, agent: Agent, grace: timedelta) -> None:
        self.session = agent.session
        self.pid = agent.pid
        self._agent = agent
        self._grace = grace
        self._ending = asyncio.create_task(agent.wait_for_end())

    def when_ended(self, call: Callable[[Any], None]) -> None:
        self._ending.add_done_callback(call)

    def send(self, prompt: Prompt) -> AsyncGenerator[TurnUpdate, None]:
        return self._agent.send(prompt)

    async def interrupt(self) -> None:
        await self._agent.interrupt()

    async def stop(self, grace: timedelta) -> None:
        await self._agent.stop(min(grace, self._grace))

    async def wait_for_end(self) -> str:
        return await asyncio.shield(self._ending)
