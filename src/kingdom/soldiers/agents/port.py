"""The interface of agents: start an agent, send it prompts one after another, and stop it."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from kingdom.errors import ProgramFailed
from kingdom.soldiers.agent_tools.port import AgentTools
from kingdom.soldiers.redaction import DEFAULT_REDACTION, Redaction
from kingdom.soldiers.sandbox.meter import Meter
from kingdom.soldiers.sandbox.sandbox import Sandbox
from kingdom.workflow.model.messages.answers import TranscriptFinding
from kingdom.workflow.model.resources.mcp_server import McpServer

# The reason of a failed turn that was interrupted on purpose.
INTERRUPTED = "the turn was interrupted"


class TurnFailed(ProgramFailed):
    """Raised when a prompt gets no answer; `cost_usd` is the cost of its turn so far."""

    def __init__(self, reason: str, cost_usd: float = 0.0) -> None:
        self.reason = reason
        self.cost_usd = cost_usd
        super().__init__(reason)


class AgentFailed(TurnFailed):
    """Raised when a turn fails while the agent keeps running."""

    code = "agent_failed"


class TurnTooLong(AgentFailed):
    """Raised when a turn exceeds its time limit or shows no activity for too long."""

    code = "turn_too_long"


class UsageLimited(AgentFailed):
    """Raised when the vendor refuses further work until a time; after that time the session can continue."""

    code = "usage_limited"

    def __init__(self, reason: str, until: datetime, cost_usd: float = 0.0) -> None:
        self.until = until
        super().__init__(reason, cost_usd)


class BudgetSpent(AgentFailed):
    """Raised when a turn has used up its budget; the session can continue with a larger budget."""

    code = "budget_spent"


class AgentGone(TurnFailed):
    """Raised when an agent has ended and can take no prompt."""

    code = "agent_gone"


class SessionGone(AgentGone):
    """Raised when the session that an agent is to continue no longer exists."""

    code = "session_gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything needed to start an agent or to continue its session.

    `session` is the session to continue, or None for a new one. If it belonged to another soldier so far,
    `earlier_transcript` is the transcript of that soldier. The agent inherits no environment variables: it gets
    those in `environment`, PWD, and settings that its client adds. Its standard error is appended to the file `errors`.
    `instructions` are given to the agent in addition to its prompts. `sandbox` limits what the agent can see and reach,
    `tools` are the tools that Kingdom offers to the agent, and `redaction` removes secrets from everything that is
    written. `meter` counts the cost of the model if its answers pass through Kingdom's proxy.
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
    tools: AgentTools | None = None
    redaction: Redaction = DEFAULT_REDACTION
    meter: Meter | None = None
    earlier_transcript: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What an agent is to do in one turn.

    `id` identifies this attempt; the part before its `#`, if any, identifies the task or report. With `continues` the
    agent resumes what an earlier turn of the session left unfinished. `reply` is a person's reply to the question with
    which the earlier turn ended. The turn ends once it has cost `budget_usd`.
    """

    id: str
    text: str
    continues: bool = False
    reply: str = ""
    budget_usd: float | None = None


class AgentMessage(msgspec.Struct, frozen=True, tag="Said"):
    """A part of the text that the agent writes."""

    text: str


class ToolUse(msgspec.Struct, frozen=True, tag="ToolCalled"):
    """The start of a tool use; `detail` is a short form of the arguments."""

    tool: str
    detail: str


class CostUpdate(msgspec.Struct, frozen=True, tag="Spent"):
    """The cost of the turn so far."""

    cost_usd: float


class PetitionRequest(msgspec.Struct, frozen=True, tag="Petitioned"):
    """The agent's request that the court does something for it."""

    kind: str
    body: dict[str, Any]


class TurnAnswer(msgspec.Struct, frozen=True, tag="Answered"):
    """The end of a turn with an answer."""

    text: str
    cost_usd: float


class TurnQuestion(msgspec.Struct, frozen=True, tag="Asked"):
    """The end of a turn with a question for a person; a later prompt of the session carries the reply."""

    question: str
    choices: tuple[str, ...]
    cost_usd: float


TurnUpdate = AgentMessage | ToolUse | CostUpdate | PetitionRequest | TurnAnswer | TurnQuestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What a transcript says about a prompt: its outcome (`finding`), the text of the answer, and the cost.

    `petitions` are all petitions of this prompt's turn in order, including those that never left the host because the
    agent or the host was killed. A turn that continues does not report these petitions again.
    """

    finding: TranscriptFinding
    text: str = ""
    cost_usd: float = 0.0
    petitions: tuple[PetitionRequest, ...] = ()


class Agent(ABC):
    """A started agent; it takes one prompt at a time until it ends or is stopped."""

    session: str
    pid: int | None

    @abstractmethod
    def send(self, prompt: Prompt) -> AsyncGenerator[TurnUpdate, None]:
        """Yield updates while the agent works on a prompt; the last one is a TurnAnswer or a TurnQuestion.

        Raises AgentFailed if the turn fails or another turn is running, and AgentGone if the agent ends. Closing
        the generator early interrupts the turn.
        """

    @abstractmethod
    async def interrupt(self) -> None:
        """Ask the current turn to end; its `send` then raises AgentFailed. Does nothing if no turn is running."""

    @abstractmethod
    async def stop(self, grace: timedelta) -> None:
        """Let the agent finish its turn and end within the grace period, then kill it; a grace of zero kills at once.

        Afterwards no process that the agent started is left. A second call can only shorten the grace period.
        """

    @abstractmethod
    async def wait_for_end(self) -> str:
        """Wait until the agent has ended and return the reason; never raises."""


A = TypeVar("A", bound=Agent)


async def return_when_ready(agent: A, ready: Awaitable[None]) -> A:
    """Return an agent once it is ready; stop it if it does not become ready."""
    try:
        await ready
    except BaseException:
        await agent.stop(timedelta())
        raise
    return agent


class AgentClient(ABC):
    """Starts agents of one kind."""

    name: ClassVar[str]
    # Whether an agent is a separate process that can be killed together with its tools.
    has_process: ClassVar[bool]
    # Whether another soldier can continue a session of this kind of agent.
    takes_over_sessions: ClassVar[bool] = False

    def program(self, path: str) -> Path | None:  # noqa: ARG002 - implementations that look for a program use it
        """Return the program that this client starts, found on `path` or elsewhere; None if it is part of Kingdom.

        Raises Misconfigured if the program is missing.
        """
        return None

    @abstractmethod
    async def start(self, launch: Launch) -> Agent:
        """Start an agent with a new session, or continue the session of the launch.

        Raises AgentGone if the agent does not start or the session cannot be continued, and SessionGone if the session
        of another soldier no longer exists.
        """

    @abstractmethod
    async def inspect(self, launch: Launch, prompt_id: str) -> Inspection:
        """Return the outcome of a prompt according to the transcript, without starting a process."""
