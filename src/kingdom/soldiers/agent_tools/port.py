"""The port to the tools that an agent calls while it works: results, questions, petitions and memories."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# The name of the MCP server that offers the tools to an agent.
SERVER_NAME = "kingdom"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """A tool for agents; `schema` is the JSON schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReply:
    """The answer of a tool to the agent."""

    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentQuestion:
    """A question of an agent to a person; it ends the agent's turn."""

    text: str
    choices: tuple[str, ...] = ()


class AgentTools(ABC):
    """Handles the tool calls of one agent; the agent's client offers the tools as an MCP server named `kingdom`.

    The client must make the tools visible to the model from the start: some agents hide the tools of MCP servers until
    the model searches for them. The client calls `begin` and `end` around each turn; calls between turns are rejected.
    """

    tools: Sequence[ToolDefinition]

    @abstractmethod
    def begin(self, prompt_id: str, on_petition: Callable[[str, dict[str, Any]], None]) -> None:
        """Accept calls during the turn of a prompt, and pass the kind and body of each petition to `on_petition`.

        `on_petition` writes the petition to the transcript and only then emits a PetitionRequest.
        """

    @abstractmethod
    def end(self) -> AgentQuestion | None:
        """Stop accepting calls, and return the question that the agent asked in this turn, if any."""

    @abstractmethod
    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolReply:
        """Handle a call and return the answer; a call that is not valid gets an error with the reason."""
