"""What an agent can say: the tools that it is offered, and the typed form of what it calls them with."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from kingdom.errors import MalformedEvent
from kingdom.soldiers.tools.port import ToolDefinition

# A petition of this size is the largest that a run keeps.
BYTES_MAX = 64_000
_NUL = b"\\u0000"
_UNREADABLE = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)
# Some vendors refuse choices that do not say their type.
_STRING = {"type": "string"}
_Choice = Annotated[str, Meta(min_length=1, max_length=200)]

GUIDE = """\
You speak to the house that you work for through the tools of the MCP server `kingdom`:

- report_result: how your work ended. Call it once you are done, also when you failed; without it your work counts as
  failed. The last call counts.
- ask_human: a question that only a person can answer. Your turn ends with it; the answer comes as your next prompt.
- petition: ask for an output that you have no right to cause yourself, such as a comment on a pull request.
- remember: one sentence that would have saved you time, for those who work here after you.
"""


class ToolInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a tool was called with; no id is among it, for those are ours."""

    def needs(self, *names: str) -> None:
        """Raise an error that tells which of these texts are empty."""
        empty = [name for name in names if not getattr(self, name).strip()]
        if empty:
            raise ValueError(f"{' and '.join(empty)} must not be empty")


class ReportResultInput(ToolInput, frozen=True, kw_only=True):
    """How the work ended."""

    status: Annotated[
        Literal["success", "failed", "needs_human", "skipped"],
        Meta(
            description="skipped: there was nothing to do. needs_human: you cannot go on without a person.",
            extra_json_schema=_STRING,
        ),
    ]
    summary: Annotated[str, Meta(max_length=2000, description="What you did or found, in one or two sentences.")]
    details: Annotated[str | dict[str, Any], Meta(description="What else counts, as a text or an object.")] = ""
    error: Annotated[str, Meta(max_length=4000, description="With failed: what went wrong.")] = ""
    question: Annotated[str, Meta(max_length=4000, description="With needs_human: what a person must tell you.")] = ""
    reason: Annotated[str, Meta(max_length=2000, description="With skipped: why there was nothing to do.")] = ""

    def __post_init__(self) -> None:
        self.needs("summary")
        match self.status:
            case "failed":
                self.needs("error")
            case "needs_human":
                self.needs("question")
            case "skipped":
                self.needs("reason")


class AskHumanInput(ToolInput, frozen=True, kw_only=True):
    """A question that only a person can answer."""

    question: Annotated[str, Meta(max_length=2000, description="The question, such that a yes or a word answers it.")]
    choices: Annotated[
        tuple[_Choice, ...], Meta(max_length=10, description="Answers to choose from, if there are few.")
    ] = ()
    context: Annotated[str, Meta(max_length=4000, description="What one must know to answer it.")] = ""

    def __post_init__(self) -> None:
        self.needs("question")


class PetitionInput(ToolInput, frozen=True, kw_only=True):
    """An output that the agent has no right to cause itself."""

    kind: Annotated[str, Meta(max_length=60, description="What is asked for, such as github.comment.")]
    body: Annotated[dict[str, Any], Meta(description="The fields of this kind.")]

    def __post_init__(self) -> None:
        self.needs("kind")


class RememberInput(ToolInput, frozen=True, kw_only=True):
    """One thing that was learned, in the form in which a General keeps it."""

    text: Annotated[str, Meta(max_length=500, description="One sentence that is true beyond this task.")]
    about: Annotated[
        Literal["patterns", "repo", "decisions"],
        Meta(
            description="patterns: true everywhere. repo: of this repository. decisions: what was decided.",
            extra_json_schema=_STRING,
        ),
    ] = "patterns"

    def __post_init__(self) -> None:
        self.needs("text")


AnyToolInput = ReportResultInput | AskHumanInput | PetitionInput | RememberInput
_KINDS: Mapping[str, type[AnyToolInput]] = {
    "report_result": ReportResultInput,
    "ask_human": AskHumanInput,
    "petition": PetitionInput,
    "remember": RememberInput,
}
_DESCRIPTIONS = {
    "report_result": (
        "Report how your work ended; the last report counts. failed needs `error`, needs_human needs `question`,"
        " skipped needs `reason`. Call it when you are done, whatever came of it."
    ),
    "ask_human": (
        "Ask a person what you cannot find out yourself. End your turn right after it: the answer comes as your next"
        " prompt, and nothing is lost meanwhile."
    ),
    "petition": (
        "Ask for an output that needs credentials; policy decides, and you are told the verdict. Kinds and bodies:"
        " github.comment {body}, github.review {event: COMMENT | REQUEST_CHANGES, seldom APPROVE, body},"
        " github.pull_request {title, body, base} of what you have changed, jira.comment {body}, jira.transition {to},"
        " slack.message {text, channel}. repo and number, key and channel follow from your task unless you name others."
    ),
    "remember": (
        "Keep one sentence for later tasks: what would have saved you time. Nothing about this task alone, no secrets."
    ),
}


def _schema(kind: type[ToolInput]) -> dict[str, Any]:
    _, components = msgspec.json.schema_components([kind])
    schema: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(components[kind.__name__]))
    return {name: value for name, value in schema.items() if name not in ("title", "description")}


TOOLS = tuple(
    ToolDefinition(name=name, description=_DESCRIPTIONS[name], schema=_schema(kind)) for name, kind in _KINDS.items()
)


def parse_tool_input(tool: str, arguments: Mapping[str, Any]) -> AnyToolInput:
    """Return what an agent says, or raise MalformedEvent with what it should have said."""
    kind = _KINDS.get(tool)
    if kind is None:
        raise MalformedEvent(f"there is no tool {tool[:100]!r}; call one of {', '.join(_KINDS)}")
    try:
        # Through JSON, for that is what a store must be able to keep.
        raw = msgspec.json.encode(arguments)
        if len(raw) > BYTES_MAX:
            raise ValueError(f"{len(raw)} bytes are too many, {BYTES_MAX} are allowed: shorten it")
        if _NUL in raw:
            raise ValueError("it contains a NUL character, or \\u0000 for one: leave that out")
        return msgspec.json.decode(raw, type=kind)
    except _UNREADABLE as error:
        raise MalformedEvent(f"{tool} was not done: {error}. Correct it, and call {tool} again") from error
