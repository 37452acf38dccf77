"""The script in a prompt: a fenced block with the info string `script`, in which each line is a step as a JSON object.

    ```script
    {"write": "hello.txt", "text": "hello"}
    {"run": "git add -A && git commit -m hello", "first_time_only": true}
    {"ask": "May I continue?", "choices": ["yes", "no"]}
    {"answer": "You said {reply}."}
    ```

Texts may contain `{reply}`, the latest reply of a person, and `{prompts}`, how many prompts the session has got.
"""

import re
from typing import Any, Literal

import msgspec

from kingdom.soldiers.agents.port import AgentFailed

_FENCE = re.compile(
    r"^(?P<fence>`{3,})script[ \t]*\n(?P<body>.*?)(?P<end>^(?P=fence)[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_LINE_SHOWN = 120
# Fields in which {reply} and {prompts} are replaced. Paths and commands are not among them, because a reply is
# untrusted text.
_FIELDS_WITH_VALUES = frozenset(
    {"text", "say", "stream", "answer", "ask", "body", "result", "remember", "report", "fail"}
)


class ScriptStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One step; with `first_time_only` it runs at most once per session, even after interruptions."""

    first_time_only: bool = False

    def with_reply(self, reply: str) -> "ScriptStep":
        """Return the step with {reply} replaced by the reply of a person."""
        return self._with_value("{reply}", reply)

    def with_prompts(self, prompts: int) -> "ScriptStep":
        """Return the step with {prompts} replaced by the number of prompts that the session has got."""
        return self._with_value("{prompts}", str(prompts))

    def _with_value(self, placeholder: str, value: str) -> "ScriptStep":
        texts = {name: text for name, text in msgspec.structs.asdict(self).items() if name in _FIELDS_WITH_VALUES}
        return msgspec.structs.replace(
            self, **{name: _fill_in(text, placeholder, value) for name, text in texts.items()}
        )


class WriteStep(ScriptStep, frozen=True):
    """Write a file; the path is relative to the WorkSpace."""

    write: str
    text: str = ""


class AppendStep(ScriptStep, frozen=True):
    """Append to a file; the path is relative to the WorkSpace."""

    append: str
    text: str = ""


class RunStep(ScriptStep, frozen=True):
    """Run a shell command in its own process session; a failure fails the turn unless `may_fail` is set."""

    run: str
    may_fail: bool = False


class SayStep(ScriptStep, frozen=True):
    """Output a text at once."""

    say: str


class StreamStep(ScriptStep, frozen=True):
    """Output a text slowly, with a pause of `every` seconds after each word."""

    stream: str
    every: float = 0.02


class AnswerStep(ScriptStep, frozen=True):
    """Set the answer of the turn."""

    answer: str


class AskStep(ScriptStep, frozen=True):
    """End the turn with a question; the script continues here with the reply."""

    ask: str
    choices: tuple[str, ...] = ()


class PetitionStep(ScriptStep, frozen=True):
    """Make a petition to the court."""

    petition: str
    body: dict[str, Any] = msgspec.field(default_factory=dict)


class ResultStep(ScriptStep, frozen=True):
    """Report the result of the work, with the arguments of the tool `report_result`."""

    result: dict[str, Any]


class RememberStep(ScriptStep, frozen=True):
    """Save a sentence for later runs, with the arguments of the tool `remember`."""

    remember: dict[str, Any]


class ReportStep(ScriptStep, frozen=True):
    """Set the answer to the next prompt that has no script."""

    report: str


class CostStep(ScriptStep, frozen=True):
    """Add a cost in US dollars."""

    cost: float


class WaitForStep(ScriptStep, frozen=True):
    """Wait until a file exists."""

    wait_for: str


class FailStep(ScriptStep, frozen=True):
    """Fail the turn."""

    fail: str


class UsageLimitStep(ScriptStep, frozen=True):
    """Fail the turn with a usage limit that ends after `usage_limit` seconds; the next turn continues the script."""

    usage_limit: float


class HangStep(ScriptStep, frozen=True):
    """Do nothing forever; a `deaf` agent also ignores its input and signals, so only a kill ends it."""

    hang: Literal["deaf"] | bool


class CrashStep(ScriptStep, frozen=True):
    """End the process immediately with this exit code."""

    crash: int


KINDS: dict[str, type[ScriptStep]] = {
    "write": WriteStep,
    "append": AppendStep,
    "run": RunStep,
    "say": SayStep,
    "stream": StreamStep,
    "answer": AnswerStep,
    "ask": AskStep,
    "petition": PetitionStep,
    "result": ResultStep,
    "remember": RememberStep,
    "report": ReportStep,
    "cost": CostStep,
    "wait_for": WaitForStep,
    "fail": FailStep,
    "usage_limit": UsageLimitStep,
    "hang": HangStep,
    "crash": CrashStep,
}


def has_script(text: str) -> bool:
    """Return whether a prompt contains a script, valid or not."""
    return _FENCE.search(text) is not None


def parse_script(text: str) -> tuple[ScriptStep, ...] | None:
    """Return the steps in a prompt, or None if it has no script; raises AgentFailed with the first invalid line."""
    block = _FENCE.search(text)
    if block is None:
        return None
    if not block["end"]:
        raise AgentFailed(f"the block of the script is not closed: end it with {block['fence']}")
    lines = enumerate(block["body"].splitlines(), start=1)
    return tuple(_parse_step(number, line) for number, line in lines if line.strip())


def _parse_step(number: int, line: str) -> ScriptStep:
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
        kinds = [kind for kind in KINDS if kind in fields]
        if len(kinds) != 1:
            raise msgspec.ValidationError(
                f"a step has exactly one of {', '.join(KINDS)}, this one has {kinds or 'none'}"
            )
        return msgspec.convert(fields, KINDS[kinds[0]])
    except msgspec.MsgspecError as error:
        raise AgentFailed(
            f"line {number} of the script is not a valid step: {error}: {line.strip()[:_LINE_SHOWN]}"
        ) from error


def _fill_in(text: Any, placeholder: str, value: str) -> Any:
    if isinstance(text, str):
        return text.replace(placeholder, value)
    if isinstance(text, dict):
        return {key: _fill_in(item, placeholder, value) for key, item in text.items()}
    return text
