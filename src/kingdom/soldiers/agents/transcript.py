"""Transcripts: append-only files of JSON lines that readers follow by byte offset.

All agents share the vocabulary of docs/transcripts.md. Every entry has a `type`, and `append_entry` adds the time as
`at`. Entries other than `session`, `noted` and `ended` also have the id of their `prompt`. The table lists each type,
its other fields, and its meaning:

session      session, model, agent                 an agent started a new session or continues this one
prompt       text, reply, continues                synced to disk before the agent gets it
said         text                                  a piece of text; streamed words are joined first
tool         tool, detail, call                    the agent began to use a tool
output       call, text, isError                   the output of the tool, shortened
spent        costUsd                               the cost of the turn so far, as the agent reports it
metered      costUsd                               the measured cost of the whole prompt; it replaces `spent`
petition     kind, body                            synced to disk before it is passed on
asked        question, choices, costUsd            the turn ended with a question
answered     answer, costUsd                       the turn ended with an answer
failed       reason, until, costUsd                the turn failed; the vendor accepts work again at `until`
interrupted  reason, costUsd                       the turn was ended on purpose
noted        text                                  anything else that a person should know
ended        reason                                the process of the agent is gone

The entry that ends a turn can also have `inputTokens` and `outputTokens`.

`to_entry` converts a TurnUpdate to an entry. Agents may add fields and types of their own. The scripted agent records
the steps of its script instead, and `normalize_entry` translates these into this vocabulary.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kingdom.clock import utc_now
from kingdom.soldiers.agents.port import (
    AgentMessage,
    CostUpdate,
    Inspection,
    PetitionRequest,
    ToolUse,
    TurnAnswer,
    TurnQuestion,
    TurnUpdate,
)
from kingdom.soldiers.redaction import DEFAULT_REDACTION, Redaction
from kingdom.soldiers.unreadable_json import UNREADABLE_JSON
from kingdom.workflow.model.messages.answers import TranscriptFinding

TranscriptEntry = dict[str, Any]

PAGE_BYTES = 1 << 20

# Raises one of UNREADABLE_JSON if a line is not a JSON object.
decode_entry = msgspec.json.Decoder(TranscriptEntry).decode


@dataclass(frozen=True, slots=True)
class TranscriptPage:
    """Entries in order; `ends` has the offset after each entry, and `next_offset` is where the next page begins."""

    entries: list[TranscriptEntry]
    next_offset: int
    ends: list[int]


def append_entry(
    path: Path, entry: Mapping[str, Any], *, durable: bool = True, redaction: Redaction = DEFAULT_REDACTION
) -> None:
    """Append an entry with the current time and without secrets; with `durable` the entry is synced to disk."""
    line = msgspec.json.encode({"at": utc_now(), **redaction.value(msgspec.to_builtins(entry))})
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Do not append to the torn line of a writer that was killed.
        start = b"" if _ends_with_newline(file) else b"\n"
        _write(file, start + line + b"\n")
        if durable:
            os.fsync(file)
    finally:
        os.close(file)


def to_entry(update: TurnUpdate, prompt_id: str) -> TranscriptEntry:
    """Return the transcript entry for an update of a turn."""
    fields: TranscriptEntry
    match update:
        case AgentMessage(text=text):
            fields = {"type": "said", "text": text}
        case ToolUse(tool=tool, detail=detail):
            fields = {"type": "tool", "tool": tool, "detail": detail}
        case CostUpdate(cost_usd=cost):
            fields = {"type": "spent", "costUsd": cost}
        case PetitionRequest(kind=kind, body=body):
            fields = {"type": "petition", "kind": kind, "body": body}
        case TurnAnswer(text=text, cost_usd=cost):
            fields = {"type": "answered", "answer": text, "costUsd": cost}
        case TurnQuestion(question=question, choices=choices, cost_usd=cost):
            fields = {"type": "asked", "question": question, "choices": choices, "costUsd": cost}
    return {"prompt": prompt_id, **fields}


def normalize_entry(entry: TranscriptEntry) -> TranscriptEntry:
    """Return an entry in the common vocabulary, translated if the scripted agent wrote it."""
    match entry:
        case {"type": str()}:
            return entry
        case {"session": str()}:
            return {"type": "session", **entry}
        case {"prompt": str(), "text": str()}:
            return {"type": "prompt", "continues": entry.get("goesOn", False), **entry}
        case {"step": int(), "does": dict(step)}:
            return {**entry, **_normalize_step(step)}
        case {"answer": str()}:
            return {"type": "answered", **entry}
        case {"failed": "interrupted"}:
            return {"type": "interrupted", **entry}
        case {"failed": str(reason)}:
            return {"type": "failed", "reason": reason, **entry}
    return {"type": "", **entry}


def inspect_entries(entries: Iterable[TranscriptEntry], prompt_id: str) -> Inspection:
    """Return the outcome of one prompt; a turn that ended with a question is unfinished."""
    finding, text, cost, cost_before = TranscriptFinding.ABSENT, "", 0.0, 0.0
    metered: float | None = None
    petitions: list[PetitionRequest] = []
    for entry in entries:
        if entry.get("prompt") != prompt_id:
            continue
        if entry.get("type") == "metered":
            metered = entry["costUsd"]
            continue
        if entry.get("type") == "prompt":
            # The agent was interrupted and prompted again about the same task.
            cost_before, cost = cost_before + cost, 0.0
        cost = entry.get("costUsd", cost)
        match entry:
            case {"type": "answered", "answer": str(text)}:
                finding = TranscriptFinding.ANSWERED
            case {"type": "petition", "kind": str(kind)}:
                petitions.append(PetitionRequest(kind, entry.get("body", {})))
        if finding is TranscriptFinding.ABSENT:
            finding = TranscriptFinding.UNFINISHED
    cost_usd = round(cost_before + cost, 9) if metered is None else metered
    return Inspection(finding=finding, text=text, cost_usd=cost_usd, petitions=tuple(petitions))


def inspect_transcript(
    transcript: Path, prompt_id: str, inspect: Callable[[list[TranscriptEntry], str], Inspection] = inspect_entries
) -> Inspection:
    """Return what a transcript says about one prompt; the transcript may be missing."""
    try:
        entries = read_entries(transcript)
    except FileNotFoundError:
        return Inspection(finding=TranscriptFinding.NO_TRANSCRIPT)
    return inspect(entries, prompt_id)


def read_page(path: Path, offset: int = 0, *, at_most: int = PAGE_BYTES) -> TranscriptPage:
    """Return about `at_most` bytes of entries from an offset on."""
    with path.open("rb") as file:
        file.seek(offset)
        return parse_page(file, offset, at_most)


def parse_page(lines: Iterable[bytes], offset: int, at_most: int) -> TranscriptPage:
    """Return about `at_most` bytes of entries from lines; the first line begins at `offset`.

    An incomplete last line is left for the next page; a line that cannot be decoded is skipped.
    """
    entries: list[TranscriptEntry] = []
    ends: list[int] = []
    position = offset
    for line in lines:
        if not line.endswith(b"\n"):
            break
        position += len(line)
        if (entry := try_decode_entry(line)) is not None:
            entries.append(entry)
            ends.append(position)
        if position - offset >= at_most:
            break
    return TranscriptPage(entries, position, ends)


def tail_offset(path: Path, size: int) -> int:
    """Return the offset of the first whole line within the last `size` bytes of a file."""
    with path.open("rb") as file:
        start = file.seek(0, os.SEEK_END) - size
        if start <= 0:
            return 0
        file.seek(start - 1)
        return start - 1 + len(file.readline())


def read_entries(path: Path) -> list[TranscriptEntry]:
    """Return every entry of a transcript."""
    return read_page(path, at_most=path.stat().st_size + 1).entries


def _normalize_step(step: Mapping[str, Any]) -> TranscriptEntry:
    match step:
        case {"say": text} | {"stream": text}:
            return {"type": "said", "text": text}
        case {"cost": _}:
            return {"type": "spent"}
        case {"petition": kind}:
            return {"type": "petition", "kind": kind, "body": step.get("body", {})}
        case {"ask": question}:
            return {"type": "asked", "question": question, "choices": step.get("choices", ())}
        case {"result": {"summary": summary}}:
            return {"type": "tool", "tool": "report_result", "detail": summary}
        case {"remember": {"text": text}}:
            return {"type": "tool", "tool": "remember", "detail": text}
    tool = next((name for name in ("write", "append", "run") if name in step), "")
    return {"type": "tool", "tool": tool, "detail": step[tool]} if tool else {"type": "step"}


def try_decode_entry(line: bytes) -> TranscriptEntry | None:
    """Return the entry of a line; None if it cannot be decoded, such as a line torn by a kill."""
    try:
        return decode_entry(line)
    except UNREADABLE_JSON:
        return None


def try_decode_message(line: bytes) -> dict[str, Any] | None:
    """Return the message of an agent's program in a line; None if it cannot be decoded.

    Half a surrogate pair, which programs in JavaScript can write as an escape and msgspec rejects, becomes "?".
    """
    if (message := try_decode_entry(line)) is not None:
        return message
    try:
        text = json.dumps(json.loads(line), ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return try_decode_entry(text.encode(errors="replace"))


def _ends_with_newline(file: int) -> bool:
    size = os.fstat(file).st_size
    return size == 0 or os.pread(file, 1, size - 1) == b"\n"


def _write(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
