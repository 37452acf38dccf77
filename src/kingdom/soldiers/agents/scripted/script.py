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

from kingdom.soldiers.agents.port import AgentFailed

_FENCE = re.compile(
    r"^(?P<fence>`{3,})script[ \t]*\n(?P<body>.*?)(?P<end>^(?P=fence)[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_SHOWN = 120
# Where the reply of a person may stand: it is foreign text and has no say in paths and commands.
_TEXTS = frozenset({"text", "say", "stream", "answer", "ask", "body", "result", "remember", "report", "fail"})


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One step; with `first_time_only` a session takes it once at most, whatever interrupts it."""

    first_time_only: bool = False

    def with_reply(self, reply: str) -> "Step":
        """Return the step with the reply of a person in its texts."""
        texts = {name: value for name, value in msgspec.structs.asdict(self).items() if name in _TEXTS}
        return msgspec.structs.replace(self, **{name: _filled(value, reply) for name, value in texts.items()})


class Write(Step, frozen=True):
    """Write a file, relative to the work space."""

    write: str
    text: str = ""


class Append(Step, frozen=True):
    """Append to a file, relative to the work space."""

    append: str
    text: str = ""


class Run(Step, frozen=True):
    """Run a shell command in a session of its own; a failing one fails the turn unless it `may_fail`."""

    run: str
    may_fail: bool = False


class Say(Step, frozen=True):
    """Say a part of the text."""

    say: str


class Stream(Step, frozen=True):
    """Say a text slowly, a word `every` so many seconds."""

    stream: str
    every: float = 0.02


class Answer(Step, frozen=True):
    """Choose the text with which the turn will end."""

    answer: str


class Ask(Step, frozen=True):
    """End the turn with a question; the script goes on here when the reply has come."""

    ask: str
    choices: tuple[str, ...] = ()


class Petition(Step, frozen=True):
    """Ask the court to do something."""

    petition: str
    body: dict[str, Any] = msgspec.field(default_factory=dict)


class Result(Step, frozen=True):
    """Report how the work ended, with the arguments of the tool `report_result`."""

    result: dict[str, Any]


class Remember(Step, frozen=True):
    """Keep a sentence for those who come later, with the arguments of the tool `remember`."""

    remember: dict[str, Any]


class Report(Step, frozen=True):
    """Choose the text that answers the next prompt without a script."""

    report: str


class Cost(Step, frozen=True):
    """Spend money, in US dollars."""

    cost: float


class WaitFor(Step, frozen=True):
    """Wait until a file exists."""

    wait_for: str


class Fail(Step, frozen=True):
    """Fail the turn."""

    fail: str


class UsageLimit(Step, frozen=True):
    """Fail the turn as an agent does whose vendor lets it do nothing for so many seconds; then the script goes on."""

    usage_limit: float


class Hang(Step, frozen=True):
    """Do nothing for ever; a `deaf` agent also hears nothing and only a kill ends it."""

    hang: Literal["deaf"] | bool


class Crash(Step, frozen=True):
    """End the agent at once, without a word, with this exit code."""

    crash: int


KINDS: dict[str, type[Step]] = {
    "write": Write,
    "append": Append,
    "run": Run,
    "say": Say,
    "stream": Stream,
    "answer": Answer,
    "ask": Ask,
    "petition": Petition,
    "result": Result,
    "remember": Remember,
    "report": Report,
    "cost": Cost,
    "wait_for": WaitFor,
    "fail": Fail,
    "usage_limit": UsageLimit,
    "hang": Hang,
    "crash": Crash,
}


def has_script(text: str) -> bool:
    """Return whether a prompt carries a script, a wrong one too."""
    return _FENCE.search(text) is not None


def parse_script(text: str) -> tuple[Step, ...] | None:
    """Return the steps in a prompt, or None if it has no script; raises AgentFailed naming a line that is wrong."""
    block = _FENCE.search(text)
    if block is None:
        return None
    if not block["end"]:
        raise AgentFailed(f"the script has no end: close its block with {block['fence']}")
    lines = enumerate(block["body"].splitlines(), start=1)
    return tuple(_parse_step(number, line) for number, line in lines if line.strip())


def _parse_step(number: int, line: str) -> Step:
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
        kinds = [kind for kind in KINDS if kind in fields]
        if len(kinds) != 1:
            raise msgspec.ValidationError(
                f"a step has exactly one of {', '.join(KINDS)}, this one has {kinds or 'none'}"
            )
        return msgspec.convert(fields, KINDS[kinds[0]])
    except msgspec.MsgspecError as error:
        raise AgentFailed(f"line {number} of the script is no step: {error}: {line.strip()[:_SHOWN]}") from error


def _filled(value: Any, reply: str) -> Any:
    if isinstance(value, str):
        return value.replace("{reply}", reply)
    if isinstance(value, dict):
        return {key: _filled(item, reply) for key, item in value.items()}
    return value
