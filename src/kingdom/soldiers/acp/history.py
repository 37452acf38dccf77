"""What is known of a session without its process: all of it stands in our transcript."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kingdom.soldiers import notebook
from kingdom.soldiers.agent import Prompt
from kingdom.soldiers.notebook import GO_ON, Remembered

_SIGNS_OF_WORK = frozenset({"said", "tool", "output", "spent", "petition", "asked"})


@dataclass
class AcpUnfinishedPrompt(notebook.Unfinished):
    """The latest prompt of a session while it has no answer; `has_begun` is set once the agent shows work on it."""

    has_begun: bool = False


@dataclass
class AcpHistory(Remembered[AcpUnfinishedPrompt]):
    """What a session has come to; `cost_usd` is what the agent says that all of it has cost."""

    prompted: bool = False
    cost_usd: float = 0.0

    def learn(self, entry: Mapping[str, Any]) -> None:
        """Take in the next entry of its transcript."""
        super().learn(entry)
        self.cost_usd = entry.get("sessionUsd", self.cost_usd)
        match entry:
            case {"type": "prompt", "text": str(text)}:
                self._learn_prompt(text, entry)
        if self.unfinished and entry.get("type") in _SIGNS_OF_WORK:
            self.unfinished.has_begun = True

    def text_for(self, prompt: Prompt) -> str:
        """Return what the agent is to be told, who may have has_begun of it already."""
        before = self.text_or_unfinished(prompt)
        if isinstance(before, str):
            return before
        return GO_ON if before.has_begun else f"{GO_ON}\n\nThis is what you were asked:\n\n{before.asked}"

    def _learn_prompt(self, text: str, entry: Mapping[str, Any]) -> None:
        before, reply = self.unfinished, entry.get("reply", "")
        self.prompted = True
        if before is None or not (entry.get("continues") or reply):
            self.unfinished = AcpUnfinishedPrompt(text, reply)
        elif reply:
            # Until the agent shows that it has the reply, only the reply is missing to it.
            self.unfinished = AcpUnfinishedPrompt(reply, reply)
