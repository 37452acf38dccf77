"""Narrate the demo: turn entries of the log and of agent transcripts into lines for the user."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kingdom.bus.log import LogEntry
from kingdom.soldiers.agents.transcript import TranscriptEntry

_OUTPUT_LINES_MAX = 4
_COMMIT_LENGTH = 10
_Data = Mapping[str, Any]


class Tone(StrEnum):
    """How a line is emphasized."""

    PLAIN = "plain"
    WORDS = "words"
    GOOD = "good"
    BAD = "bad"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class NarrationLine:
    """One line of the narration: who did what."""

    who: str
    what: str
    tone: Tone = Tone.PLAIN


def describe_log_entry(entry: LogEntry) -> NarrationLine | None:
    """Return the line for an entry of the log, or None if the entry is not worth showing."""
    describe = _DESCRIPTIONS.get(entry.type)
    return describe(entry.actor, entry.data) if describe else None


def describe_transcript_entry(entry: TranscriptEntry) -> Iterator[NarrationLine]:
    """Yield the lines for an entry of a transcript: what the agent says and does."""
    match entry:
        case {"does": {"say": str(words)} | {"stream": str(words)}} | {"answer": str(words)}:
            yield NarrationLine("agent", f"“{words}”", Tone.WORDS)
        case {"does": {"run": str(command)}}:
            yield NarrationLine("agent", f"$ {command}")
            for line in _select_lines(str(entry.get("output", ""))):
                yield NarrationLine("", f"  {line}")
        case {"does": {"write": str(path)}}:
            yield NarrationLine("agent", f"writes {path}")
        case {"does": {"petition": str(kind)}}:
            yield NarrationLine("agent", f"may not do it itself, and asks for {kind}")


def _select_lines(output: str) -> list[str]:
    """Return the changed lines of a diff, or the first lines of any other output."""
    lines = [line for line in output.splitlines() if line.strip()]
    changed = [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]
    return (changed or lines)[:_OUTPUT_LINES_MAX]


def _detected(actor: str, data: _Data) -> NarrationLine | None:
    # An answer has an entry of its own.
    is_answer = str(data["event_type"]).endswith(".human_response")
    return None if is_answer else NarrationLine(actor, f"notices {data['event_type']}")


def _message(_: str, data: _Data) -> NarrationLine:
    content = f": {data['content']}" if data.get("content") else ""
    return NarrationLine("envoy", f"sends a message{content}")


def _checkpoint(_: str, data: _Data) -> NarrationLine:
    commits = ", ".join(commit[:_COMMIT_LENGTH] for commit in data["commits"].values())
    at = f" at commit {commits}" if commits else ""
    return NarrationLine("soldiers", f"take checkpoint {_short(data['checkpointId'])}{at}", Tone.GOOD)


def _rolled_back(_: str, data: _Data) -> NarrationLine:
    kept = "; the agent's changes are kept under refs/kingdom/rescue" if data.get("rescueRefs") else ""
    where = f"checkpoint {_short(data['checkpointId'])}" if data["checkpointId"] else "the base branch"
    return NarrationLine("soldiers", f"roll back to {where}{kept}", Tone.GOOD)


def _short(thing_id: str) -> str:
    """Return the id of a Work or checkpoint in a readable form, such as `w2-c1 of task-1`."""
    run, found, part = thing_id.rpartition("-w")
    return f"w{part} of {run.removeprefix('wf-')}" if found else thing_id


def _agent_started(_: str, data: _Data) -> NarrationLine:
    return NarrationLine("soldiers", f"start the agent of {_short(data['workId'])} as process {data['pid']}")


def _agent_lost(_: str, data: _Data) -> NarrationLine:
    return NarrationLine("soldiers", f"lose the agent of {_short(data['workId'])}: {data['error']}", Tone.BAD)


def _resumed(actor: str, data: _Data) -> NarrationLine:
    return NarrationLine(actor, f"resumes the run from {_short(data['fromWorkId'] or 'its end')}")


def _completed(actor: str, data: _Data) -> NarrationLine:
    how = Tone.GOOD if data["status"] == "success" else Tone.BAD
    return NarrationLine(actor, f"ends {data['task_id']}: {data['status']} after {data['duration_seconds']} s", how)


_DESCRIPTIONS: Mapping[str, Callable[[str, _Data], NarrationLine | None]] = {
    "event.detected": _detected,
    "event.dispatched": lambda actor, data: NarrationLine(
        actor, f"gives it to {data['target_general']} as {data['task_id']}"
    ),
    "task.started": lambda actor, data: NarrationLine(actor, f"starts {data['task_id']}"),
    "task.needs_human": lambda actor, data: NarrationLine(actor, f"asks a person: {data['question']}", Tone.PERSON),
    "task.resumed": lambda actor, data: NarrationLine(actor, f"resumes {data['original_task_id']} with the answer"),
    "task.completed": _completed,
    "task.failed": lambda actor, data: NarrationLine(actor, f"fails {data['task_id']}: {data['error']}", Tone.BAD),
    "message.sent": _message,
    "message.human_response": lambda actor, data: NarrationLine(
        actor, f"receives the answer for {data['task_id']}", Tone.PERSON
    ),
    "petition.granted": lambda actor, data: NarrationLine(actor, f"allows {data['kind']} on {data['target']}"),
    "petition.refused": lambda actor, data: NarrationLine(
        actor, f"refuses {data['kind']}: {data.get('reason', '')}", Tone.BAD
    ),
    "petition.performed": lambda actor, data: NarrationLine(
        actor, f"performs {data['kind']} on {data['target']}", Tone.GOOD
    ),
    "petition.failed": lambda actor, data: NarrationLine(
        actor, f"{data['kind']} failed: {data.get('reason', '')}", Tone.BAD
    ),
    "AgentStarted": _agent_started,
    "AgentError": _agent_lost,
    "WorkflowResumed": _resumed,
    "CheckpointCreated": _checkpoint,
    "RolledBack": _rolled_back,
}
