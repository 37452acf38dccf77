"""What the transcripts of a run tell of its Tasks and their cost, in the words of every kind of agent."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kingdom.soldiers.agents.claude.history import find_session_file, read_answer
from kingdom.soldiers.agents.transcript import TranscriptEntry, read_entries
from kingdom.soldiers.files.agent_files import AgentFile

# By the id of a call the model tells which step of its script that is.
_STEP = re.compile(r"step(\d+)[ab]")


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """What is told about one Task: the numbers of the steps in the order they were done, and how often it was answered.

    `again` counts the steps that were done once more by whoever went on after a crash: an agent that is killed may not
    know of the last one that it has done.
    """

    steps: list[int]
    answers: int
    again: int = 0


def played(sessions: Path, home: Path) -> dict[str, Played]:
    """Return what the transcripts tell about each Task; `home` has what agents keep themselves."""
    told: dict[str, _Told] = {}
    for transcript in sorted(sessions.glob("*.json")):
        entries = read_entries(transcript)
        for entry in [*entries, *_own_answers(entries, home)]:
            task, _, attempt = str(entry.get("prompt", "")).partition("#")
            if task and not task.endswith("-report"):
                told.setdefault(task, _Told()).hear(entry, attempt)
    return {task: each.played() for task, each in told.items()}


def cost_told(sessions: Path) -> float:
    """Return what all turns have cost, each by its last word."""
    turns: dict[tuple[str, str], float] = {}
    for transcript in sessions.glob("*.json"):
        for entry in read_entries(transcript):
            if "costUsd" in entry:
                turns[transcript.name, entry["prompt"]] = entry["costUsd"]
    return sum(turns.values())


class _Told:
    """Puts together what is told about one Task."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, str]] = []
        self._again = 0
        self._answered: list[str] = []

    def hear(self, entry: TranscriptEntry, attempt: str) -> None:
        match entry:
            case {"step": int(number)}:
                self._steps.append((number, attempt))
            case {"type": "output", "call": str(call), "isError": False} if found := _STEP.search(call):
                self._do(int(found[1]), attempt)
            case {"own_answer": True}:
                # Who has told of it already tells of no second one.
                if attempt not in self._answered:
                    self._answered.append(attempt)
            case {"answer": str()}:
                self._answered.append(attempt)

    def played(self) -> Played:
        steps = [number for number, _ in self._steps]
        return Played(steps=steps, answers=len(self._answered), again=self._again)

    def _do(self, number: int, attempt: str) -> None:
        last, before = self._steps[-1] if self._steps else (0, "")
        if number == last and attempt != before:
            self._again += 1
        else:
            self._steps.append((number, attempt))


def _own_answers(entries: list[TranscriptEntry], home: Path) -> Iterator[TranscriptEntry]:
    """Yield the prompts that were answered by what Claude Code has written down itself."""
    own: AgentFile | None = None
    for entry in entries:
        match entry:
            case {"type": "session", "agent": "claude", "session": str(session)}:
                own = find_session_file({"HOME": str(home)}, session)
            case {"type": "prompt", "prompt": str(prompt), "uuid": str(uuid)} if own:
                if read_answer(own, uuid) is not None:
                    yield {"prompt": prompt, "own_answer": True}
