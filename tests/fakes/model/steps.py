"""Parse the script in a prompt: the steps of the scripted agent, and more steps that only a model can execute."""

import json
import re
from typing import Any

from kingdom.soldiers.agents.scripted.script import KINDS

Step = dict[str, Any]

_FENCE = re.compile(r"^(?P<fence>`{3,})script[ \t]*\n(?P<body>.*?)^(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)
_KINDS = (*KINDS, "result", "remember", "call", "usage", "delay", "drop_stream", "model_error")


class WrongScript(Exception):
    """Raised when a line of a script is no step."""


def has_script(text: str) -> bool:
    """Return whether a prompt carries a script."""
    return _FENCE.search(text) is not None


def steps_of(text: str) -> list[Step]:
    """Return the steps of a prompt with a script. Raise WrongScript with the line that is wrong."""
    block = _FENCE.search(text)
    lines = block["body"].splitlines() if block else []
    return [_step(line) for line in lines if line.strip()]


def filled(value: Any, reply: str) -> Any:
    """Return a text, or all the texts in a document, with the reply of a person."""
    match value:
        case str():
            return value.replace("{reply}", reply)
        case dict():
            return {key: filled(item, reply) for key, item in value.items()}
        case list():
            return [filled(item, reply) for item in value]
    return value


def _step(line: str) -> Step:
    # Some agents quote the prompt once more.
    for written in (line, line.replace('\\"', '"')):
        try:
            step = json.loads(written)
        except ValueError:
            continue
        if isinstance(step, dict) and any(kind in step for kind in _KINDS):
            return step
    raise WrongScript(f"no step: {line.strip()}")
