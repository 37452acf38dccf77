"""Transcripts: files of JSON lines that only grow, and that readers follow by byte offset.

All agents share the vocabulary of docs/transcripts.md. An entry has a `type`, a time `at`, which `append_entry` stamps,
and, unless it is a `session`, `noted` or `ended`, the id of its `prompt`:

session      session, model, agent                 an agent came up, with a new session or to go on with this one
prompt       text, reply, continues                durable before the agent gets it
said         text                                  a whole piece of text, never cut within a word
tool         tool, detail, call                    the agent began to use a tool
output       call, text, isError                   what the tool answered, shortened
spent        costUsd, inputTokens, outputTokens    of the turn so far, as the agent reports it
metered      costUsd                               what the vendor charged for all of this prompt; this counts
petition     kind, body                            durable before anybody is told
asked        question, choices, costUsd            the turn ended with a question
answered     answer, costUsd                       the turn ended with an answer
failed       reason, until, costUsd                the turn failed; the vendor lets the agent go on at `until`
interrupted  reason, costUsd                       somebody ended the turn
noted        text                                  anything else that a person should know
ended        reason                                the process of the agent is gone

`entry_of` makes the entry of an Update. Further fields and types are an agent's own business. The scripted agent notes
the steps of its script instead, which `typed` puts into these words.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kingdom.clock import utc_now
from kingdom.soldiers.agent import (
    Answered,
    Asked,
    Inspection,
    Petitioned,
    Said,
    Spent,
    ToolCalled,
    Update,
)
from kingdom.soldiers.redaction import WELL_KNOWN, Redaction
from kingdom.workflow.model.messages.answers import TranscriptFinding

Entry = dict[str, Any]

# Whatever may come of decoding what somebody else wrote.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_PAGE_BYTES = 1 << 20

# Raises one of UNREADABLE where a line holds no JSON object.
decode_entry = msgspec.json.Decoder(Entry).decode


@dataclass(frozen=True, slots=True)
class Page:
    """Entries in their order, and the offset at which the next ones will stand; `ends` tells it of each entry."""

    entries: list[Entry]
    next_offset: int
    ends: list[int]


def append_entry(
    path: Path, entry: Mapping[str, Any], *, durable: bool = True, redaction: Redaction = WELL_KNOWN
) -> None:
    """Append a line with its time and without secrets; a `durable` one is on the disk when this returns."""
    line = msgspec.json.encode({"at": utc_now(), **redaction.value(msgspec.to_builtins(entry))})
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # The torn line of a writer that was killed must not swallow this one.
        start = b"" if _ends_with_a_line(file) else b"\n"
        _write(file, start + line + b"\n")
        if durable:
            os.fsync(file)
    finally:
        os.close(file)


def entry_of(update: Update, prompt_id: str) -> Entry:
    """Return the entry that tells of an update of a turn."""
    fields: Entry
    match update:
        case Said(text=text):
            fields = {"type": "said", "text": text}
        case ToolCalled(tool=tool, detail=detail):
            fields = {"type": "tool", "tool": tool, "detail": detail}
        case Spent(cost_usd=cost):
            fields = {"type": "spent", "costUsd": cost}
        case Petitioned(kind=kind, body=body):
            fields = {"type": "petition", "kind": kind, "body": body}
        case Answered(text=text, cost_usd=cost):
            fields = {"type": "answered", "answer": text, "costUsd": cost}
        case Asked(question=question, choices=choices, cost_usd=cost):
            fields = {"type": "asked", "question": question, "choices": choices, "costUsd": cost}
    return {"prompt": prompt_id, **fields}


def typed(entry: Entry) -> Entry:
    """Return an entry in the common words, also one of the scripted agent."""
    match entry:
        case {"type": str()}:
            return entry
        case {"session": str()}:
            return {"type": "session", **entry}
        case {"prompt": str(), "text": str()}:
            return {"type": "prompt", "continues": entry.get("goesOn", False), **entry}
        case {"step": int(), "does": dict(step)}:
            return {**entry, **_typed_step(step)}
        case {"answer": str()}:
            return {"type": "answered", **entry}
        case {"failed": "interrupted"}:
            return {"type": "interrupted", **entry}
        case {"failed": str(reason)}:
            return {"type": "failed", "reason": reason, **entry}
    return {"type": "", **entry}


def inspected(entries: Iterable[Entry], prompt_id: str) -> Inspection:
    """Return what a transcript tells about one prompt; a turn that ended with a question is not finished."""
    finding, text, cost, cost_before = TranscriptFinding.ABSENT, "", 0.0, 0.0
    metered: float | None = None
    petitions: list[Petitioned] = []
    for entry in entries:
        if entry.get("prompt") != prompt_id:
            continue
        if entry.get("type") == "metered":
            metered = entry["costUsd"]
            continue
        if entry.get("type") == "prompt":
            # The agent was interrupted and prompted again about the same.
            cost_before, cost = cost_before + cost, 0.0
        cost = entry.get("costUsd", cost)
        match entry:
            case {"type": "answered", "answer": str(text)}:
                finding = TranscriptFinding.ANSWERED
            case {"type": "petition", "kind": str(kind)}:
                petitions.append(Petitioned(kind, entry.get("body", {})))
        if finding is TranscriptFinding.ABSENT:
            finding = TranscriptFinding.UNFINISHED
    cost_usd = round(cost_before + cost, 9) if metered is None else metered
    return Inspection(finding=finding, text=text, cost_usd=cost_usd, petitions=tuple(petitions))


def looked_up(
    transcript: Path, prompt_id: str, tells: Callable[[list[Entry], str], Inspection] = inspected
) -> Inspection:
    """Return what the transcript of an agent tells about one prompt, if there is a transcript at all."""
    try:
        entries = read_entries(transcript)
    except FileNotFoundError:
        return Inspection(finding=TranscriptFinding.NO_TRANSCRIPT)
    return tells(entries, prompt_id)


def read_page(path: Path, offset: int = 0, *, at_most: int = _PAGE_BYTES) -> Page:
    """Return about `at_most` bytes of entries from an offset on.

    A last line without its end is left for later; a line that no entry can be read from is passed over.
    """
    entries: list[Entry] = []
    ends: list[int] = []
    position = offset
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                break
            position += len(line)
            if (entry := entry_or_none(line)) is not None:
                entries.append(entry)
                ends.append(position)
            if position - offset >= at_most:
                break
    return Page(entries, position, ends)


def tail_offset(path: Path, size: int) -> int:
    """Return where the first line begins that lies in the last `size` bytes."""
    with path.open("rb") as file:
        start = file.seek(0, os.SEEK_END) - size
        if start <= 0:
            return 0
        file.seek(start - 1)
        return start - 1 + len(file.readline())


def read_entries(path: Path) -> list[Entry]:
    """Return every entry of a transcript."""
    return read_page(path, at_most=path.stat().st_size + 1).entries


def _typed_step(step: Mapping[str, Any]) -> Entry:
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


def entry_or_none(line: bytes) -> Entry | None:
    """Return what a line holds; None where that is nothing, such as a line that was torn by a kill."""
    try:
        return decode_entry(line)
    except UNREADABLE:
        return None


def _ends_with_a_line(file: int) -> bool:
    size = os.fstat(file).st_size
    return size == 0 or os.pread(file, 1, size - 1) == b"\n"


def _write(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
