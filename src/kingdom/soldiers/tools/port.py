"""What an agent says to the house while it works: its result, questions, petitions, and what it learned."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# The name of the MCP server under which an agent finds the tools.
SERVER_NAME = "kingdom"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """A tool that an agent is offered; `schema` is the JSON schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReply:
    """What a tool answers to the agent."""

    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentQuestion:
    """What an agent asks a person; its turn ends with it."""

    text: str
    choices: tuple[str, ...] = ()


class AgentTools(ABC):
    """Takes what one agent says; whoever runs the agent offers it as an MCP server named `kingdom`.

    Its model must see the tools from the start: some agents show those of MCP servers only to who looks for them.
    Around each turn whoever runs the agent calls `begin` and `end`; between turns nothing is taken.
    """

    tools: Sequence[ToolDefinition]

    @abstractmethod
    def begin(self, prompt_id: str, on_petition: Callable[[str, dict[str, Any]], None]) -> None:
        """Listen during the turn of a prompt; the kind and the body of each petition go to `on_petition` at once.

        `on_petition` writes it into the transcript and only then tells of it, as a Petitioned.
        """

    @abstractmethod
    def end(self) -> AgentQuestion | None:
        """Listen no more, and return what the agent asked a person in this turn."""

    @abstractmethod
    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolReply:
        """Take what the agent says, and answer; a call that cannot be understood is an error that says why."""
