"""What a scripted session remembers: all of it is read from the transcript, so that it survives every end."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kingdom.soldiers.agent import Inspection, Petitioned, Prompt
from kingdom.soldiers.scripted.script import Step
from kingdom.soldiers.transcript import Entry
from kingdom.workflow.model.messages.answers import TranscriptFinding

DEFAULT_ANSWER = "done"


@dataclass(slots=True)
class Unfinished:
    """A script that has not come to its end: its prompt, how many steps are done, and whether it waits for a reply."""

    text: str
    done: int = 0
    asking: bool = False
    answer: str = DEFAULT_ANSWER


@dataclass(slots=True)
class Memory:
    """What the entries of the latest session in a transcript amount to."""

    session: str | None = None
    sessions: int = 0
    unfinished: Unfinished | None = None
    reply: str = ""
    _report: str | None = None
    _report_taken_by: str | None = None
    _taken_once: set[bytes] = field(default_factory=set)

    def learn(self, entry: Entry) -> None:
        """Take in what happened next in the session."""
        match entry:
            case {"prompt": str(), "text": str(text)}:
                self._learn_prompt(text, entry)
            case {"prompt": str(), "begun": int(number), "does": dict(does)}:
                self._taken_once.add(_key(number, does))
            case {"prompt": str(), "step": int(number), "does": dict(does)}:
                self._learn_step(number, does)
            case {"prompt": str(prompt_id), "answer": str()}:
                if self.unfinished is None and self._report_taken_by is None:
                    self._report_taken_by = _attempted(prompt_id)
                self.unfinished = None

    def continued(self, prompt: Prompt) -> Unfinished | None:
        """Return the script that a prompt goes on with, or None if it begins anew."""
        return self.unfinished if prompt.continues or prompt.reply else None

    def report_for(self, prompt_id: str) -> str | None:
        """Return the text that waits for a prompt without a script; every attempt at the same gets the same."""
        return self._report if self._report_taken_by in {None, _attempted(prompt_id)} else None

    def began_before(self, number: int, step: Step) -> bool:
        """Return whether a step for the first time only was begun before."""
        return _key(number, msgspec.to_builtins(step)) in self._taken_once

    def _learn_prompt(self, text: str, entry: Entry) -> None:
        reply = entry.get("reply", "")
        self.reply = reply or self.reply
        if not entry.get("goesOn"):
            self.unfinished = Unfinished(text) if entry.get("scripted") else None
        elif self.unfinished is not None and reply:
            self.unfinished.asking = False

    def _learn_step(self, number: int, does: dict[str, Any]) -> None:
        if self.unfinished is not None:
            self.unfinished.done = number
            self.unfinished.asking = "ask" in does
            self.unfinished.answer = does.get("answer", self.unfinished.answer)
        if "report" in does:
            self._report, self._report_taken_by = does["report"], None


def recalled(entries: Iterable[Entry]) -> Memory:
    """Return what a transcript amounts to."""
    memory = Memory()
    for entry in entries:
        if "session" not in entry:
            memory.learn(entry)
        elif entry["session"] != memory.session:
            memory = Memory(session=entry["session"], sessions=memory.sessions + 1)
    return memory


def inspected(entries: Iterable[Entry], prompt_id: str) -> Inspection:
    """Return what a transcript tells about one prompt; one that ended with a question is not finished."""
    finding, text, cost, cost_before = TranscriptFinding.ABSENT, "", 0.0, 0.0
    petitions: list[Petitioned] = []
    for entry in entries:
        if entry.get("prompt") != prompt_id:
            continue
        if "text" in entry:
            # The agent was interrupted and prompted again about the same.
            cost_before, cost = cost_before + cost, 0.0
        cost = entry.get("costUsd", cost)
        if "answer" in entry:
            finding, text = TranscriptFinding.ANSWERED, entry["answer"]
        elif finding is TranscriptFinding.ABSENT:
            finding = TranscriptFinding.UNFINISHED
        does = entry.get("does", {})
        if "step" in entry and "petition" in does:
            petitions.append(Petitioned(does["petition"], does.get("body", {})))
    return Inspection(finding=finding, text=text, cost_usd=cost_before + cost, petitions=tuple(petitions))


def _attempted(prompt_id: str) -> str:
    return prompt_id.partition("#")[0]


def _key(number: int, does: dict[str, Any]) -> bytes:
    return msgspec.json.encode([number, does], order="sorted")
