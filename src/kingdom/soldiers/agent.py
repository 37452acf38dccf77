"""What an agent is to Kingdom: something that is started, given prompts one after the other, and ended."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from kingdom.errors import ProgramFailed
from kingdom.soldiers.redaction import WELL_KNOWN, Redaction
from kingdom.soldiers.sandbox.meter import Meter
from kingdom.soldiers.sandbox.sandbox import Sandbox
from kingdom.soldiers.voice.voice import Voice
from kingdom.workflow.model.messages.answers import TranscriptFinding
from kingdom.workflow.model.resources.mcp_server import McpServer

# Why a turn failed that somebody ended.
INTERRUPTED = "the turn was interrupted"


class TurnFailed(ProgramFailed):
    """Raised when a prompt has no answer; `cost_usd` is what its turn had cost by then."""

    def __init__(self, reason: str, cost_usd: float = 0.0) -> None:
        self.reason = reason
        self.cost_usd = cost_usd
        super().__init__(reason)


class AgentFailed(TurnFailed):
    """Raised when a turn failed while the agent lives on."""

    code = "agent_failed"


class TurnTooLong(AgentFailed):
    """Raised when a turn took longer than it may, or showed no sign of life for too long."""

    code = "turn_too_long"


class UsageLimited(AgentFailed):
    """Raised when the vendor lets the agent do no more until a time; its session can go on then."""

    code = "usage_limited"

    def __init__(self, reason: str, until: datetime, cost_usd: float = 0.0) -> None:
        self.until = until
        super().__init__(reason, cost_usd)


class BudgetSpent(AgentFailed):
    """Raised when a turn has cost what it may; its session can go on once more is granted."""

    code = "budget_spent"


class AgentGone(TurnFailed):
    """Raised when an agent has ended, so that it can take no prompt."""

    code = "agent_gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything that is needed to start an agent, or to go on with its session.

    `environment` is the whole environment of the agent: nothing is inherited, only PWD is added. What the agent
    writes to its standard error is appended to `errors`; the transcript grows by whole JSON lines. `instructions` is
    what the agent shall know beside its prompts, `sandbox` what it may see, `voice` what it may say to the house,
    `redaction` what must not be written down. `meter` counts what the model costs, where its answers pass the house.
    """

    soldier_id: str
    work_space: Path
    model: str
    session: str | None
    transcript: Path
    errors: Path
    environment: Mapping[str, str]
    mcp_servers: tuple[McpServer, ...]
    instructions: str = ""
    sandbox: Sandbox | None = None
    voice: Voice | None = None
    redaction: Redaction = WELL_KNOWN
    meter: Meter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What an agent shall do in one turn.

    `id` names this attempt; what stands before its `#`, if anything, names what is attempted. With `continues` the
    agent goes on with what an earlier turn of the session left unfinished; so it does with the `reply` of a person
    to what it had asked. A turn that has cost `budget_usd` ends.
    """

    id: str
    text: str
    continues: bool = False
    reply: str = ""
    budget_usd: float | None = None


class Said(msgspec.Struct, frozen=True, tag=True):
    """The agent said a part of its text."""

    text: str


class ToolCalled(msgspec.Struct, frozen=True, tag=True):
    """The agent began to use a tool."""

    tool: str
    detail: str


class Spent(msgspec.Struct, frozen=True, tag=True):
    """What the turn has cost so far."""

    cost_usd: float


class Petitioned(msgspec.Struct, frozen=True, tag=True):
    """The agent asks the court to do something in its name."""

    kind: str
    body: dict[str, Any]


class Answered(msgspec.Struct, frozen=True, tag=True):
    """The turn ended with an answer."""

    text: str
    cost_usd: float


class Asked(msgspec.Struct, frozen=True, tag=True):
    """The turn ended with a question for a person; a later prompt of the session carries the reply."""

    question: str
    choices: tuple[str, ...]
    cost_usd: float


Update = Said | ToolCalled | Spent | Petitioned | Answered | Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a transcript tells about a prompt: what became of it, the text of the answer, and what it cost.

    `petitions` are all that the agent made in the turn of this prompt, in their order, also those that it was killed
    over before anybody heard of them; a turn that goes on tells none of them again.
    """

    finding: TranscriptFinding
    text: str = ""
    cost_usd: float = 0.0
    petitions: tuple[Petitioned, ...] = ()


class Agent(ABC):
    """An agent that was started; it takes one prompt at a time until it ends or is ended."""

    session: str
    pid: int | None

    @abstractmethod
    def send(self, prompt: Prompt) -> AsyncGenerator[Update, None]:
        """Yield what the agent does about a prompt; the last update is an Answered or an Asked.

        Raises AgentFailed if the turn fails or another one still runs, and AgentGone if the agent ends. Closing the
        generator before its end interrupts the turn.
        """

    @abstractmethod
    async def interrupt(self) -> None:
        """Ask for the end of the current turn, whose `send` then raises AgentFailed; without one nothing happens."""

    @abstractmethod
    async def stop(self, grace: timedelta) -> None:
        """Let the agent finish its turn and end within the grace, then kill it; no grace kills at once.

        Afterwards nothing that it had started runs any more. A second stop changes nothing but may shorten the grace.
        """

    @abstractmethod
    async def ended(self) -> str:
        """Wait until the agent is gone and return why; this never raises."""


A = TypeVar("A", bound=Agent)


async def once_up(agent: A, comes_up: Awaitable[None]) -> A:
    """Return an agent once it has come up; one that does not is stopped."""
    try:
        await comes_up
    except BaseException:
        await agent.stop(timedelta())
        raise
    return agent


class AgentClient(ABC):
    """A way to run one kind of agent."""

    name: ClassVar[str]
    # Whether agents are processes of their own: they can be killed, and their tools with them.
    has_process: ClassVar[bool]

    def program(self, path: str) -> Path | None:  # noqa: ARG002 - for those who look for one
        """Return the program that is started, found on a PATH or else; None where it is a part of Kingdom.

        Raises Misconfigured where there is none.
        """
        return None

    @abstractmethod
    async def start(self, launch: Launch) -> Agent:
        """Start an agent with a new session, or one that goes on with the session of the launch.

        Raises AgentGone if it does not come up or the session cannot be continued.
        """

    @abstractmethod
    async def inspect(self, launch: Launch, prompt_id: str) -> Inspection:
        """Return what became of a prompt according to the transcript, without any process."""
