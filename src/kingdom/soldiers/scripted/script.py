"""The script of a prompt: a fenced block with the info string `script`, and one step as a JSON object per line.

    ```script
    {"write": "hello.txt", "text": "hello"}
    {"run": "git add -A && git commit -m hello", "first_time_only": true}
    {"ask": "Shall I go on?", "choices": ["yes", "no"]}
    {"answer": "You said {reply}."}
    ```

Texts may contain `{reply}`, the latest reply of a person.
"""

import re
from typing import Any, Literal

import msgspec

from kingdom.soldiers.agent import AgentFailed

_FENCE = re.compile(
    r"^(?P<fence>`{3,})script[ \t]*\n(?P<body>.*?)(?P<end>^(?P=fence)[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_LINE_SHOWN = 120
# Where the reply of a person may stand: it is foreign text and has no say in paths and commands.
_FIELDS_WITH_REPLY = frozenset(
    {"text", "say", "stream", "answer", "ask", "body", "result", "remember", "report", "fail"}
)


class ScriptStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One step; with `first_time_only` a session takes it once at most, whatever interrupts it."""

    first_time_only: bool = False

    def with_reply(self, reply: str) -> "ScriptStep":
        """Return the step with the reply of a person in its texts."""
        texts = {name: value for name, value in msgspec.structs.asdict(self).items() if name in _FIELDS_WITH_REPLY}
        return msgspec.structs.replace(self, **{name: _fill_in_reply(value, reply) for name, value in texts.items()})


class WriteStep(ScriptStep, frozen=True):
    """Write a file, relative to the work space."""

    write: str
    text: str = ""


class AppendStep(ScriptStep, frozen=True):
    """Append to a file, relative to the work space."""

    append: str
    text: str = ""


class RunStep(ScriptStep, frozen=True):
    """Run a shell command in a session of its own; a failing one fails the turn unless it `may_fail`."""

    run: str
    may_fail: bool = False


class SayStep(ScriptStep, frozen=True):
    """Say a part of the text."""

    say: str


class StreamStep(ScriptStep, frozen=True):
    """Say a text slowly, a word `every` so many seconds."""

    stream: str
    every: float = 0.02


class AnswerStep(ScriptStep, frozen=True):
    """Choose the text with which the turn will end."""

    answer: str


class AskStep(ScriptStep, frozen=True):
    """End the turn with a question; the script goes on here when the reply has come."""

    ask: str
    choices: tuple[str, ...] = ()


class PetitionStep(ScriptStep, frozen=True):
    """Ask the court to do something."""

    petition: str
    body: dict[str, Any] = msgspec.field(default_factory=dict)


class ResultStep(ScriptStep, frozen=True):
    """Report how the work ended, with the arguments of the tool `report_result`."""

    result: dict[str, Any]


class RememberStep(ScriptStep, frozen=True):
    """Keep a sentence for those who come later, with the arguments of the tool `remember`."""

    remember: dict[str, Any]


class ReportStep(ScriptStep, frozen=True):
    """Choose the text that answers the next prompt without a script."""

    report: str


class CostStep(ScriptStep, frozen=True):
    """Spend money, in US dollars."""

    cost: float


class WaitForStep(ScriptStep, frozen=True):
    """Wait until a file exists."""

    wait_for: str


class FailStep(ScriptStep, frozen=True):
    """Fail the turn."""

    fail: str


class UsageLimitStep(ScriptStep, frozen=True):
    """Fail the turn as an agent does whose vendor lets it do nothing for so many seconds; then the script goes on."""

    usage_limit: float


class HangStep(ScriptStep, frozen=True):
    """Do nothing for ever; a `deaf` agent also hears nothing and only a kill ends it."""

    hang: Literal["deaf"] | bool


class CrashStep(ScriptStep, frozen=True):
    """End the agent at once, without a word, with this exit code."""

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
    """Return whether a prompt carries a script, a wrong one too."""
    return _FENCE.search(text) is not None


def parse_script(text: str) -> tuple[ScriptStep, ...] | None:
    """Return the steps in a prompt, or None if it has no script; raises AgentFailed naming a line that is wrong."""
    block = _FENCE.search(text)
    if block is None:
        return None
    if not block["end"]:
        raise AgentFailed(f"the script has no end: close its block with {block['fence']}")
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
        raise AgentFailed(f"line {number} of the script is no step: {error}: {line.strip()[:_LINE_SHOWN]}") from error


def _fill_in_reply(value: Any, reply: str) -> Any:
    if isinstance(value, str):
        return value.replace("{reply}", reply)
    if isinstance(value, dict):
        return {key: _fill_in_reply(item, reply) for key, item in value.items()}
    return value
