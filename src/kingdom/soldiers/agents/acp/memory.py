"""What is known of a session without its process: all of it stands in our transcript."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kingdom.soldiers.agents import session_log
from kingdom.soldiers.agents.port import Prompt
from kingdom.soldiers.agents.session_log import CONTINUE_PROMPT, SessionHistory

_SIGNS = frozenset({"said", "tool", "output", "spent", "petition", "asked"})


@dataclass
class Unfinished(session_log.UnfinishedPrompt):
    """The latest prompt of a session, as long as it has no answer; `heard` tells that the agent has begun with it."""

    heard: bool = False


@dataclass
class Past(SessionHistory[Unfinished]):
    """What a session has come to; `cost_usd` is what the agent says that all of it has cost."""

    prompted: bool = False
    cost_usd: float = 0.0

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Take in the next entry of its transcript."""
        super().apply(entry)
        self.cost_usd = entry.get("sessionUsd", self.cost_usd)
        match entry:
            case {"type": "prompt", "text": str(text)}:
                self._learn_prompt(text, entry)
        if self.unfinished and entry.get("type") in _SIGNS:
            self.unfinished.heard = True

    def text_for(self, prompt: Prompt) -> str:
        """Return what the agent is to be told, who may have heard of it already."""
        before = self.text_or_unfinished(prompt)
        if isinstance(before, str):
            return before
        return (
            CONTINUE_PROMPT if before.heard else f"{CONTINUE_PROMPT}\n\nThis is what you were asked:\n\n{before.asked}"
        )

    def _learn_prompt(self, text: str, entry: Mapping[str, Any]) -> None:
        before, reply = self.unfinished, entry.get("reply", "")
        self.prompted = True
        if before is None or not (entry.get("continues") or reply):
            self.unfinished = Unfinished(text, reply)
        elif reply:
            # Until the agent shows that it has the reply, only the reply is missing to it.
            self.unfinished = Unfinished(reply, reply)
