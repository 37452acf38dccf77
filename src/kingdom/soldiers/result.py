"""What an agent reports of its Work: a JSON document in the file that `.kingdom-task.json` names."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from kingdom.bus.envelope import STORE_KEY
from kingdom.soldiers.agent import AgentFailed, Answered, Asked

RESULT = "result.json"
_BYTES_MAX = 64_000
_NUL = b"\\u0000"
_FAILED, _NEEDS_HUMAN = "failed", "needs_human"


def read_result(space: Path) -> dict[str, Any] | None:
    """Return what the agent reported; None where it did not, or wrote something else than a document of fair size."""
    try:
        # The agent may have put anything there: a link to what it must not read, or a pipe that never ends.
        descriptor = os.open(space / RESULT, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        content = os.read(descriptor, _BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(content) > _BYTES_MAX:
        return None
    try:
        result = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    # Neither what no store can keep, nor what a store keeps for itself.
    return None if STORE_KEY in result or _NUL in msgspec.json.encode(result) else result


def forget_refusal(space: Path) -> None:
    """Remove a report that a new turn is to replace: that it failed, or needs a person."""
    result = read_result(space)
    if result and result.get("status") in (_FAILED, _NEEDS_HUMAN):
        with suppress(OSError):
            (space / RESULT).unlink()


def as_reported(end: Answered | Asked, space: Path) -> Answered | Asked:
    """Return how a turn really ended: an agent may answer politely and report that it failed, or needs a person."""
    result = read_result(space) or {}
    if isinstance(end, Asked) or result.get("status") not in (_FAILED, _NEEDS_HUMAN):
        return end
    if result["status"] == _FAILED:
        raise AgentFailed(f"the agent reports that it failed: {_text(result, 'error')}", end.cost_usd)
    choices = result.get("choices")
    return Asked(
        question=_text(result, "question"),
        choices=tuple(str(choice) for choice in choices) if isinstance(choices, list) else (),
        cost_usd=end.cost_usd,
    )


def _text(result: dict[str, Any], field: str) -> str:
    return str(result.get(field) or result.get("summary") or f"it gave no {field}")
