"""How the story is told: each line is an entry of the log of the store, or of the transcript of an agent."""

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
    """How a line wants to be read."""

    PLAIN = "plain"
    WORDS = "words"
    GOOD = "good"
    BAD = "bad"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened: who did it, and what."""

    who: str
    what: str
    tone: Tone = Tone.PLAIN


def told(entry: LogEntry) -> Line | None:
    """Return what an entry of the log tells a person, or None where it tells nothing new."""
    teller = _TELLERS.get(entry.type)
    return teller(entry.actor, entry.data) if teller else None


def heard(entry: TranscriptEntry) -> Iterator[Line]:
    """Yield what an entry of a transcript tells: the words of the agent, and what it does."""
    match entry:
        case {"does": {"say": str(words)} | {"stream": str(words)}} | {"answer": str(words)}:
            yield Line("agent", f"“{words}”", Tone.WORDS)
        case {"does": {"run": str(command)}}:
            yield Line("agent", f"$ {command}")
            for line in _changed(str(entry.get("output", ""))):
                yield Line("", f"  {line}")
        case {"does": {"write": str(path)}}:
            yield Line("agent", f"writes {path}")
        case {"does": {"petition": str(kind)}}:
            yield Line("agent", f"has no rights, and asks for {kind}")


def _changed(output: str) -> list[str]:
    """Return the lines of a diff that matter, or the first ones of any other output."""
    lines = [line for line in output.splitlines() if line.strip()]
    changed = [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]
    return (changed or lines)[:_OUTPUT_LINES_MAX]


def _detected(actor: str, data: _Data) -> Line | None:
    # Of an answer its own entry tells.
    is_answer = str(data["event_type"]).endswith(".human_response")
    return None if is_answer else Line(actor, f"notices {data['event_type']}")


def _message(_: str, data: _Data) -> Line:
    words = f": {data['content']}" if data.get("content") else ""
    return Line("envoy", f"tells people{words}")


def _checkpoint(_: str, data: _Data) -> Line:
    commits = ", ".join(commit[:_COMMIT_LENGTH] for commit in data["commits"].values())
    at = f" at commit {commits}" if commits else ""
    return Line("soldiers", f"take checkpoint {_short(data['checkpointId'])}{at}", Tone.GOOD)


def _rolled_back(_: str, data: _Data) -> Line:
    kept = "; what the agent had done is kept under refs/kingdom/rescue" if data.get("rescueRefs") else ""
    where = f"at checkpoint {_short(data['checkpointId'])}" if data["checkpointId"] else "at the base branch"
    return Line("soldiers", f"are back {where}{kept}", Tone.GOOD)


def _short(thing_id: str) -> str:
    """Return an id of a part of a run as people say it: the part, and whose it is."""
    run, found, part = thing_id.rpartition("-w")
    return f"w{part} of {run.removeprefix('wf-')}" if found else thing_id


def _agent_started(_: str, data: _Data) -> Line:
    return Line("soldiers", f"start the agent of {_short(data['workId'])} as process {data['pid']}")


def _agent_lost(_: str, data: _Data) -> Line:
    return Line("soldiers", f"lost the agent of {_short(data['workId'])}: {data['error']}", Tone.BAD)


def _resumed(actor: str, data: _Data) -> Line:
    return Line(actor, f"lets the run go on, from {_short(data['fromWorkId'] or 'its end')}")


def _completed(actor: str, data: _Data) -> Line:
    how = Tone.GOOD if data["status"] == "success" else Tone.BAD
    return Line(actor, f"ends {data['task_id']}: {data['status']} after {data['duration_seconds']} s", how)


_TELLERS: Mapping[str, Callable[[str, _Data], Line | None]] = {
    "event.detected": _detected,
    "event.dispatched": lambda actor, data: Line(actor, f"gives it to {data['target_general']} as {data['task_id']}"),
    "task.started": lambda actor, data: Line(actor, f"takes {data['task_id']} on"),
    "task.needs_human": lambda actor, data: Line(actor, f"asks a person: {data['question']}", Tone.PERSON),
    "task.resumed": lambda actor, data: Line(actor, f"lets {data['original_task_id']} go on with the answer"),
    "task.completed": _completed,
    "task.failed": lambda actor, data: Line(actor, f"gives {data['task_id']} up: {data['error']}", Tone.BAD),
    "message.sent": _message,
    "message.human_response": lambda actor, data: Line(actor, f"hears the answer for {data['task_id']}", Tone.PERSON),
    "petition.granted": lambda actor, data: Line(actor, f"allows {data['kind']} on {data['target']}"),
    "petition.refused": lambda actor, data: Line(actor, f"refuses {data['kind']}: {data.get('reason', '')}", Tone.BAD),
    "petition.performed": lambda actor, data: Line(actor, f"has done {data['kind']} on {data['target']}", Tone.GOOD),
    "petition.failed": lambda actor, data: Line(actor, f"{data['kind']} failed: {data.get('reason', '')}", Tone.BAD),
    "AgentStarted": _agent_started,
    "AgentError": _agent_lost,
    "WorkflowResumed": _resumed,
    "CheckpointCreated": _checkpoint,
    "RolledBack": _rolled_back,
}
