"""The result that an agent reports: a JSON document in the file that `.kingdom-task.json` names."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from kingdom.bus.envelope import STORE_KEY
from kingdom.soldiers.agent_tools.result_file import RESULT_FILE, read_document
from kingdom.soldiers.agents.port import AgentFailed, TurnAnswer, TurnQuestion
from kingdom.soldiers.files.agent_files import AgentFile

_NUL = b"\\u0000"
_FAILED, _NEEDS_HUMAN = "failed", "needs_human"


def read_result(space: Path) -> dict[str, Any] | None:
    """Return the agent's result; None if it is missing, not a JSON object, too large, or unfit for a store."""
    result = read_document(AgentFile(space, RESULT_FILE))
    # A store cannot keep NUL characters, and it reserves `STORE_KEY` for itself.
    unfit = result is not None and (STORE_KEY in result or _NUL in msgspec.json.encode(result))
    return None if unfit else result


def remove_unsuccessful_result(space: Path) -> None:
    """Remove a result with the status `failed` or `needs_human`, because the next turn reports another."""
    if is_unsuccessful(space):
        with suppress(OSError):
            AgentFile(space, RESULT_FILE).remove()


def is_unsuccessful(space: Path) -> bool:
    """Return whether the agent reported `failed` or `needs_human`."""
    return (read_result(space) or {}).get("status") in (_FAILED, _NEEDS_HUMAN)


def apply_reported_status(end: TurnAnswer | TurnQuestion, space: Path) -> TurnAnswer | TurnQuestion:
    """Return how a turn really ended: an agent that answers may still report `failed` or `needs_human`."""
    result = read_result(space) or {}
    if isinstance(end, TurnQuestion) or result.get("status") not in (_FAILED, _NEEDS_HUMAN):
        return end
    if result["status"] == _FAILED:
        raise AgentFailed(f"the agent reports that it failed: {_text(result, 'error')}", end.cost_usd)
    choices = result.get("choices")
    return TurnQuestion(
        question=_text(result, "question"),
        choices=tuple(str(choice) for choice in choices) if isinstance(choices, list) else (),
        cost_usd=end.cost_usd,
    )


def _text(result: dict[str, Any], field: str) -> str:
    return str(result.get(field) or result.get("summary") or f"it gave no {field}")
