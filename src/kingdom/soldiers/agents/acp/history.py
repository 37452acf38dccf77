"""The history of an ACP session according to Kingdom's transcript."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kingdom.soldiers.agents import session_log
from kingdom.soldiers.agents.port import Prompt
from kingdom.soldiers.agents.session_log import CONTINUE_PROMPT, SessionHistory

_SIGNS_OF_WORK = frozenset({"said", "tool", "output", "spent", "petition", "asked"})


@dataclass
class AcpUnfinishedPrompt(session_log.UnfinishedPrompt):
    """The latest prompt of a session while it has no answer; `has_begun` is set once the agent has worked on it."""

    has_begun: bool = False


@dataclass
class AcpHistory(SessionHistory[AcpUnfinishedPrompt]):
    """The state of a session.

    `prompted` is set once the session has a prompt. `cost_usd` is the cost of the whole session according to the agent.
    """

    prompted: bool = False
    cost_usd: float = 0.0

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Apply the next entry of the transcript."""
        super().apply(entry)
        self.cost_usd = entry.get("sessionUsd", self.cost_usd)
        match entry:
            case {"type": "prompt", "text": str(text)}:
                self._apply_prompt(text, entry)
        if self.unfinished and entry.get("type") in _SIGNS_OF_WORK:
            self.unfinished.has_begun = True

    def text_for(self, prompt: Prompt) -> str:
        """Return the text to send for a prompt, which depends on what the agent has already received."""
        before = self.text_or_unfinished(prompt)
        if isinstance(before, str):
            return before
        return (
            CONTINUE_PROMPT
            if before.has_begun
            else f"{CONTINUE_PROMPT}\n\nThis is what you were asked:\n\n{before.asked}"
        )

    def _apply_prompt(self, text: str, entry: Mapping[str, Any]) -> None:
        before, reply = self.unfinished, entry.get("reply", "")
        self.prompted = True
        if before is None or not (entry.get("continues") or reply):
            self.unfinished = AcpUnfinishedPrompt(text, reply)
        elif reply:
            # The agent knows its question, so only the reply has to be sent again if the reply gets lost.
            self.unfinished = AcpUnfinishedPrompt(reply, reply)
