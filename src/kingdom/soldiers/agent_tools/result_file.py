"""The result file in a WorkSpace, and a second file with the agent's memories, which become part of the result."""

from pathlib import Path
from typing import Any

import msgspec

from kingdom.errors import MalformedEvent
from kingdom.soldiers.agent_tools.calls import BYTES_MAX, RememberInput, ReportResultInput
from kingdom.soldiers.files.agent_files import AgentFile
from kingdom.soldiers.unreadable_json import UNREADABLE_JSON

RESULT_FILE = "result.json"
MEMORY_FILE = ".kingdom-memory.json"
_MEMORIES_MAX = 30
_MEMORY_FIELD = "memory_updates"


def write_result(space: Path, report: ReportResultInput) -> None:
    """Write the result together with the agent's memories; it replaces an earlier result."""
    document: dict[str, Any] = msgspec.to_builtins(report)
    if memories := _read_memories(space):
        document[_MEMORY_FIELD] = [_memory_update(each) for each in memories]
    _write_result(space, document)


def add_memory(space: Path, memory: RememberInput) -> None:
    """Keep a memory for the next result, and add it to the result if there is one already."""
    memories = _read_memories(space)
    if len(memories) >= _MEMORIES_MAX and memory not in memories:
        raise MalformedEvent(f"{_MEMORIES_MAX} sentences are kept already, which is the limit: remember no more")
    memories = [*(each for each in memories if each != memory), memory]
    result = read_document(AgentFile(space, RESULT_FILE))
    if result is not None:
        reported = result.get(_MEMORY_FIELD)
        others = [each for each in reported if each != _memory_update(memory)] if isinstance(reported, list) else []
        _write_result(space, {**result, _MEMORY_FIELD: [*others, _memory_update(memory)]})
    AgentFile(space, MEMORY_FILE).write(_encode(memories))


def read_document(file: AgentFile) -> dict[str, Any] | None:
    """Return the JSON object in a file of an agent; None if the file is missing, too large or not a JSON object."""
    content = file.read(BYTES_MAX)
    try:
        return None if content is None else msgspec.json.decode(content, type=dict[str, Any])
    except UNREADABLE_JSON:
        return None


def _read_memories(space: Path) -> list[RememberInput]:
    content = AgentFile(space, MEMORY_FILE).read(BYTES_MAX)
    try:
        return [] if content is None else msgspec.json.decode(content, type=list[RememberInput])[:_MEMORIES_MAX]
    except UNREADABLE_JSON:
        return []


def _write_result(space: Path, document: dict[str, Any]) -> None:
    text = _encode(document)
    if len(text.encode()) > BYTES_MAX:
        raise MalformedEvent(f"the result would have more than {BYTES_MAX} bytes: shorten its details, and try again")
    AgentFile(space, RESULT_FILE).write(text)


def _memory_update(memory: RememberInput) -> dict[str, str]:
    return {"about": memory.about, "text": memory.text}


def _encode(document: object) -> str:
    return msgspec.json.format(msgspec.json.encode(document)).decode() + "\n"
