"""The history of a scripted session, read from the transcript so that it survives the end of the process."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kingdom.soldiers.agents.port import Inspection, PetitionRequest, Prompt
from kingdom.soldiers.agents.scripted.script import ScriptStep
from kingdom.soldiers.agents.transcript import TranscriptEntry
from kingdom.workflow.model.messages.answers import TranscriptFinding

DEFAULT_ANSWER = "done"


@dataclass(slots=True)
class UnfinishedScript:
    """A script that is not finished.

    `text` is its prompt, `done` the number of finished steps, and `asking` whether the script waits for a reply.
    """

    text: str
    done: int = 0
    asking: bool = False
    answer: str = DEFAULT_ANSWER


@dataclass(slots=True)
class ScriptedHistory:
    """The state of the latest session in a transcript.

    `sessions` counts all sessions of the transcript, and `prompts` all prompts of the session, also those that another
    soldier got. `_report` is the text of the latest `report` step, and `_report_task` is the id of the task whose
    prompt was answered with this text.
    """

    session: str | None = None
    sessions: int = 0
    prompts: int = 0
    unfinished: UnfinishedScript | None = None
    reply: str = ""
    _report: str | None = None
    _report_task: str | None = None
    _begun_once: set[bytes] = field(default_factory=set)

    def apply(self, entry: TranscriptEntry) -> None:
        """Apply the next entry of the transcript."""
        match entry:
            case {"prompt": str(), "text": str(text)}:
                self._apply_prompt(text, entry)
            case {"prompt": str(), "begun": int(number), "does": dict(does)}:
                self._begun_once.add(_step_key(number, does))
            case {"prompt": str(), "step": int(number), "does": dict(does)}:
                self._apply_step(number, does)
            case {"prompt": str(prompt_id), "answer": str()}:
                if self.unfinished is None and self._report_task is None:
                    self._report_task = _task_of(prompt_id)
                self.unfinished = None

    def find_continued_script(self, prompt: Prompt) -> UnfinishedScript | None:
        """Return the script that a prompt continues, or None if the prompt starts a new script."""
        return self.unfinished if prompt.continues or prompt.reply else None

    def report_for(self, prompt_id: str) -> str | None:
        """Return the text of the latest `report` step if it is the answer to this prompt, else None.

        The text answers the next prompt that has no script, and all further attempts at the same task.
        """
        return self._report if self._report_task in {None, _task_of(prompt_id)} else None

    def began_before(self, number: int, step: ScriptStep) -> bool:
        """Return whether a step marked `first_time_only` was begun before."""
        return _step_key(number, msgspec.to_builtins(step)) in self._begun_once

    def _apply_prompt(self, text: str, entry: TranscriptEntry) -> None:
        reply = entry.get("reply", "")
        self.reply = reply or self.reply
        if not entry.get("goesOn"):
            self.prompts += 1
            self.unfinished = UnfinishedScript(text) if entry.get("scripted") else None
        elif self.unfinished is not None and reply:
            self.unfinished.asking = False

    def _apply_step(self, number: int, does: dict[str, Any]) -> None:
        if self.unfinished is not None:
            self.unfinished.done = number
            self.unfinished.asking = "ask" in does
            self.unfinished.answer = does.get("answer", self.unfinished.answer)
        if "report" in does:
            self._report, self._report_task = does["report"], None


def read_history(entries: Iterable[TranscriptEntry]) -> ScriptedHistory:
    """Return the history that a transcript contains."""
    history = ScriptedHistory()
    for entry in entries:
        if "session" not in entry:
            history.apply(entry)
        elif entry["session"] != history.session:
            history = ScriptedHistory(
                session=entry["session"], sessions=history.sessions + 1, prompts=entry.get("prompts", 0)
            )
    return history


def inspect_entries(entries: Iterable[TranscriptEntry], prompt_id: str) -> Inspection:
    """Return the outcome of one prompt; a turn that ended with a question is unfinished."""
    finding, text, cost, cost_before = TranscriptFinding.ABSENT, "", 0.0, 0.0
    petitions: list[PetitionRequest] = []
    for entry in entries:
        if entry.get("prompt") != prompt_id:
            continue
        if "text" in entry:
            # The prompt was interrupted and sent again.
            cost_before, cost = cost_before + cost, 0.0
        cost = entry.get("costUsd", cost)
        if "answer" in entry:
            finding, text = TranscriptFinding.ANSWERED, entry["answer"]
        elif finding is TranscriptFinding.ABSENT:
            finding = TranscriptFinding.UNFINISHED
        does = entry.get("does", {})
        if "step" in entry and "petition" in does:
            petitions.append(PetitionRequest(does["petition"], does.get("body", {})))
    return Inspection(finding=finding, text=text, cost_usd=cost_before + cost, petitions=tuple(petitions))


def _task_of(prompt_id: str) -> str:
    return prompt_id.partition("#")[0]


def _step_key(number: int, does: dict[str, Any]) -> bytes:
    return msgspec.json.encode([number, does], order="sorted")
