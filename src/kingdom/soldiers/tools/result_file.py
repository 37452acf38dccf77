"""What an agent said, in its WorkSpace: the report in `result.json`, and what it learned beside it until it reports."""

from pathlib import Path
from typing import Any

import msgspec

from kingdom.errors import MalformedEvent
from kingdom.soldiers.files.agent_files import AgentFile
from kingdom.soldiers.tools.calls import BYTES_MAX, RememberInput, ReportResultInput

RESULT_FILE = "result.json"
MEMORY_FILE = ".kingdom-memory.json"
_MEMORIES_MAX = 30
_FIELD = "memory_updates"
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def write_result(space: Path, report: ReportResultInput) -> None:
    """Write the report in the place of the one before, with all that the agent has learned."""
    document: dict[str, Any] = msgspec.to_builtins(report)
    if learned := _learned(space):
        document[_FIELD] = [_update(each) for each in learned]
    _write_result(space, document)


def add_memory(space: Path, memory: RememberInput) -> None:
    """Keep what the agent learned for its report, and add it to one that is there already."""
    learned = _learned(space)
    if len(learned) >= _MEMORIES_MAX and memory not in learned:
        raise MalformedEvent(f"{_MEMORIES_MAX} sentences are kept already, which is the limit: remember no more")
    learned = [*(each for each in learned if each != memory), memory]
    result = read_document(AgentFile(space, RESULT_FILE))
    if result is not None:
        reported = result.get(_FIELD)
        others = [each for each in reported if each != _update(memory)] if isinstance(reported, list) else []
        _write_result(space, {**result, _FIELD: [*others, _update(memory)]})
    AgentFile(space, MEMORY_FILE).write(_encoded(learned))


def read_document(file: AgentFile) -> dict[str, Any] | None:
    """Return a JSON object that an agent may have written; None where there is none, or none of fair size."""
    content = file.read(BYTES_MAX)
    try:
        return None if content is None else msgspec.json.decode(content, type=dict[str, Any])
    except _UNREADABLE:
        return None


def _learned(space: Path) -> list[RememberInput]:
    content = AgentFile(space, MEMORY_FILE).read(BYTES_MAX)
    try:
        return [] if content is None else msgspec.json.decode(content, type=list[RememberInput])[:_MEMORIES_MAX]
    except _UNREADABLE:
        return []


def _write_result(space: Path, document: dict[str, Any]) -> None:
    text = _encoded(document)
    if len(text.encode()) > BYTES_MAX:
        raise MalformedEvent(f"the report would have more than {BYTES_MAX} bytes: shorten its details, and try again")
    AgentFile(space, RESULT_FILE).write(text)


def _update(memory: RememberInput) -> dict[str, str]:
    return {"about": memory.about, "text": memory.text}


def _encoded(document: object) -> str:
    return msgspec.json.format(msgspec.json.encode(document)).decode() + "\n"
