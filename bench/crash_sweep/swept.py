"""Count every durable step of a process: those of its bus, its agents, its programs and its HTTP requests."""

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from bench.chaos.variants import replace as put_in_place
from bench.crash_sweep import steps
from bench.crash_sweep.steps import Steps
from kingdom.bus.delivery import Delivery
from kingdom.bus.port import Bus, Transaction
from kingdom.soldiers.agents.port import Agent, AgentClient, Inspection, Launch, Prompt, TurnUpdate

# If git dies with its host, it dies within this time after its start.
_GIT_LIVES_SECONDS = 0.004
_NUMBER = re.compile(r"\d+")
_MUTATION = re.compile(r"mutation[^{]*\{(?:\s|\\n)*(\w+)")
# Commands of git that change nothing.
_READING = frozenset({"rev-parse", "merge-base", "ls-files", "for-each-ref", "show", "diff"})


def count_steps(bus: Bus, step_counter: Steps) -> None:
    """Count each commit and each claim of a bus as a step, but not its reads."""
    open_transaction, claim = bus.transaction, bus.claim

    @asynccontextmanager
    async def transaction(hold: Sequence[Delivery] = (), *, optimistic: bool = False) -> AsyncIterator[Transaction]:
        async with open_transaction(hold, optimistic=optimistic) as opened:

            def committed() -> None:
                if words := _words(opened):
                    step_counter.reach(steps.COMMIT_AFTER, words)

            # This callback comes before all others, so nothing that waits for the commit has begun.
            opened.after_commit(committed)
            yield opened
            if words := _words(opened):
                step_counter.reach(steps.COMMIT_BEFORE, words)

    async def claim_and_count(stream: str, limit: int, worker: str) -> list[Delivery]:
        deliveries = await claim(stream, limit, worker)
        if deliveries:
            types = _each_once(delivery.envelope.type for delivery in deliveries)
            step_counter.reach(steps.CLAIM_AFTER, f"{stream}: {types}")
        return deliveries

    put_in_place(bus, "transaction", transaction)
    put_in_place(bus, "claim", claim_and_count)


def count_requests(step_counter: Steps) -> None:
    """Count each HTTP request of this process as a step, except those that only read."""
    request: Callable[..., Awaitable[aiohttp.ClientResponse]] = aiohttp.ClientSession._request

    async def counted(
        session: aiohttp.ClientSession, method: str, url: str | URL, **options: Any
    ) -> aiohttp.ClientResponse:
        label = _request_label(method, URL(url), options.get("data"))
        if label:
            step_counter.reach(steps.REQUEST_BEFORE, label)
        response = await request(session, method, url, **options)
        if label:
            step_counter.reach(steps.REQUEST_AFTER, label)
        return response

    put_in_place(aiohttp.ClientSession, "_request", counted)


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
    """An event loop that counts a step before, during and after each program, except git commands that only read."""

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


def _request_label(method: str, url: URL, data: Any) -> str:
    """Return the kind of a request, or an empty string if it only reads."""
    if method == "GET":
        return ""
    if not url.path.endswith("/graphql"):
        return f"{method} {_NUMBER.sub('N', url.path)}"
    found = _MUTATION.search(bytes(data or b"").decode())
    return f"mutation {found[1]}" if found else ""


def _words(transaction: Transaction) -> str:
    """Return the kind of a transaction's writes, or an empty string."""
    changes = transaction.changes
    if not (changes.puts or changes.copies or changes.settlements or changes.entries):
        return ""
    handled = {delivery.position: delivery.envelope.type for delivery in transaction.held}
    done = [handled.get(position, "?") for position in changes.settlements]
    published = [copy.envelope.type for copy in changes.copies.values()]
    kept = [f"{kind} {put.record.state}" for (kind, _), put in changes.puts.items()]
    return f"{_each_once(done) or 'nothing'} -> {_each_once([*published, *kept])}"


def _each_once(words: Iterable[str]) -> str:
    """Join words without repetitions, so that the label of a step does not depend on how many events came together."""
    return "+".join(dict.fromkeys(words))


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
