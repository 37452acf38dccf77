"""One turn of Claude Code: its updates, its cost and its end."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kingdom.soldiers.agent import AgentGone, Prompt, Spent
from kingdom.soldiers.claude.history import ClaudeHistory
from kingdom.soldiers.notebook import Notebook
from kingdom.soldiers.noted_turn import End, NotedTurn

_TOKENS = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cacheReadTokens": "cache_read_input_tokens",
    "cacheWriteTokens": "cache_creation_input_tokens",
}


class ClaudeTurn(NotedTurn):
    """The turn of one prompt; `before_usd` is the cost of the session before the turn."""

    def __init__(self, prompt: Prompt, notebook: Notebook[ClaudeHistory]) -> None:
        super().__init__(prompt, notebook)
        self.before_usd = 0.0
        self.limited_until: datetime | None = None

    def spend(self, session_usd: float) -> None:
        """Update the cost of the turn from the cost of the session."""
        cost_usd = round(session_usd - self.before_usd, 9)
        if cost_usd > self.cost_usd:
            self.cost_usd = cost_usd
            self.tell(Spent(cost_usd))
        else:
            self.give_sign_of_life()

    def end(self, end: End, usage: Mapping[str, Any] | None = None) -> None:
        """Record the end of the turn and report it."""
        tokens = {name: usage[theirs] for name, theirs in _TOKENS.items() if usage and theirs in usage}
        # A lost agent may have answered before it ended; its session file is inspected later.
        if not isinstance(end, AgentGone):
            self._note_end(end, tokens)
        self._tell_end(end)
