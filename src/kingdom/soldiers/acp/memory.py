"""What is known of a session without its process: all of it stands in our transcript."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kingdom.soldiers.agent import Prompt
from kingdom.soldiers.notebook import GO_ON
from kingdom.soldiers.voice.voice import Question

_SIGNS = frozenset({"said", "tool", "output", "spent", "petition", "asked"})


@dataclass(slots=True)
class Unfinished:
    """The latest prompt of a session, as long as it has no answer; `heard` tells that the agent has begun with it."""

    asked: str
    reply: str = ""
    question: Question | None = None
    heard: bool = False


@dataclass(slots=True)
class Past:
    """What a session has come to; `cost_usd` is what the agent says that all of it has cost."""

    session: str
    prompted: bool = False
    cost_usd: float = 0.0
    unfinished: Unfinished | None = None
    # What was asked by the latest prompt that has its answer.
    answered: str = ""

    def learn(self, entry: Mapping[str, Any]) -> None:
        """Take in the next entry of its transcript."""
        self.cost_usd = entry.get("sessionUsd", self.cost_usd)
        match entry:
            case {"type": "prompt", "text": str(text)}:
                self._learn_prompt(text, entry)
            case {"type": "asked", "question": str(question)} if self.unfinished:
                self.unfinished.question = Question(text=question, choices=tuple(entry.get("choices", ())))
            case {"type": "answered"}:
                self.answered = self.unfinished.asked if self.unfinished else ""
                self.unfinished = None
        if self.unfinished and entry.get("type") in _SIGNS:
            self.unfinished.heard = True

    def question_again(self, prompt: Prompt) -> Question | None:
        """Return the question that nobody has replied to, if a prompt goes on without the reply."""
        return self.unfinished.question if self.unfinished and prompt.continues and not prompt.reply else None

    def text_for(self, prompt: Prompt) -> str:
        """Return what the agent is to be told, who may have heard of it already."""
        before = self.unfinished
        if before is None and prompt.text == self.answered and (prompt.continues or prompt.reply):
            # It was answered, but not as it should be; what was done is not to be done again.
            return prompt.reply or GO_ON
        if before is None or not (prompt.continues or prompt.reply):
            return f"{prompt.text}\n\nA person has replied: {prompt.reply}" if prompt.reply else prompt.text
        if prompt.reply and (before.question or before.reply != prompt.reply):
            return prompt.reply
        return GO_ON if before.heard else f"{GO_ON}\n\nThis is what you were asked:\n\n{before.asked}"

    def _learn_prompt(self, text: str, entry: Mapping[str, Any]) -> None:
        before, reply = self.unfinished, entry.get("reply", "")
        self.prompted = True
        if before is None or not (entry.get("continues") or reply):
            self.unfinished = Unfinished(text, reply)
        elif reply:
            # Until the agent shows that it has the reply, only the reply is missing to it.
            self.unfinished = Unfinished(reply, reply)
