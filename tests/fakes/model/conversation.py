"""The common form of the requests of all vendors: a conversation, and the tools that the model may call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PromptEntry:
    """A message of a person, or of the program on their behalf."""

    text: str


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A message of the model."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEntry:
    """The model called a tool."""

    id: str


@dataclass(frozen=True, slots=True)
class ToolResultEntry:
    """A tool answered."""

    id: str
    text: str = ""
    is_error: bool = False


Entry = PromptEntry | ModelEntry | ToolCallEntry | ToolResultEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request of an agent to the model.

    `tools` are the offered tools by name. `own_tool_name` is the format of the names of our tools. `folder` is the
    directory of the agent, if the request names it.
    """

    model: str
    stream: bool
    session: str
    entries: Sequence[Entry]
    tools: Mapping[str, Any] = field(default_factory=dict)
    own_tool_name: str = "mcp__kingdom__{}"
    call_prefix: str = "call_"
    folder: str = ""


def texts_of(content: Any) -> list[str]:
    """Return the texts in the content of a message, which is a text or a list of parts."""
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if isinstance(part, dict) and isinstance(part.get("text"), str)]
