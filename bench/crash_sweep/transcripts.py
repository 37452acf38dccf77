"""Read the Tasks of a run and their cost from the transcripts of every kind of agent."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kingdom.soldiers.agents.claude.history import find_session_file, read_answer
from kingdom.soldiers.agents.transcript import TranscriptEntry, read_entries
from kingdom.soldiers.files.agent_files import AgentFile

# The id of a call contains the step of the model's script.
_STEP = re.compile(r"step(\d+)[ab]")


class TaskTranscript(msgspec.Struct, frozen=True, kw_only=True):
    """The transcript of one Task: the step numbers in their order, and the number of answers.

    `again` counts the steps that were repeated after a crash: a killed agent may not have recorded its last step.
    """

    steps: list[int]
    answers: int
    again: int = 0


def read_task_transcripts(sessions: Path, home: Path) -> dict[str, TaskTranscript]:
    """Return the transcript of each Task. `home` is the HOME of the agents, with their own session files."""
    builders: dict[str, _TaskTranscriptBuilder] = {}
    for transcript in sorted(sessions.glob("*.json")):
        entries = read_entries(transcript)
        for entry in [*entries, *_own_answers(entries, home)]:
            task, _, attempt = str(entry.get("prompt", "")).partition("#")
            if task and not task.endswith("-report"):
                builders.setdefault(task, _TaskTranscriptBuilder()).add(entry, attempt)
    return {task: each.result() for task, each in builders.items()}


def read_transcript_cost(sessions: Path) -> float:
    """Return the cost of all turns. The last entry about a turn counts."""
    turns: dict[tuple[str, str], float] = {}
    for transcript in sessions.glob("*.json"):
        for entry in read_entries(transcript):
            if "costUsd" in entry:
                turns[transcript.name, entry["prompt"]] = entry["costUsd"]
    return sum(turns.values())


class _TaskTranscriptBuilder:
    """Collects the transcript of one Task."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, str]] = []
        self._again = 0
        self._answered: list[str] = []

    def add(self, entry: TranscriptEntry, attempt: str) -> None:
        match entry:
            case {"step": int(number)}:
                self._steps.append((number, attempt))
            case {"type": "output", "call": str(call), "isError": False} if found := _STEP.search(call):
                self._add_step(int(found[1]), attempt)
            case {"own_answer": True}:
                # Count an answered attempt only once.
                if attempt not in self._answered:
                    self._answered.append(attempt)
            case {"answer": str()}:
                self._answered.append(attempt)

    def result(self) -> TaskTranscript:
        steps = [number for number, _ in self._steps]
        return TaskTranscript(steps=steps, answers=len(self._answered), again=self._again)

    def _add_step(self, number: int, attempt: str) -> None:
        last, before = self._steps[-1] if self._steps else (0, "")
        if number == last and attempt != before:
            self._again += 1
        else:
            self._steps.append((number, attempt))


def _own_answers(entries: list[TranscriptEntry], home: Path) -> Iterator[TranscriptEntry]:
    """Yield the answered prompts according to the session files of Claude Code itself."""
    own: AgentFile | None = None
    for entry in entries:
        match entry:
            case {"type": "session", "agent": "claude", "session": str(session)}:
                own = find_session_file({"HOME": str(home)}, session)
            case {"type": "prompt", "prompt": str(prompt), "uuid": str(uuid)} if own:
                if read_answer(own, uuid) is not None:
                    yield {"prompt": prompt, "own_answer": True}
