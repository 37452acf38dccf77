"""One turn of Claude Code: its updates, its cost and its end."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kingdom.soldiers.agents.claude.history import ClaudeHistory
from kingdom.soldiers.agents.port import AgentGone, CostUpdate, Prompt
from kingdom.soldiers.agents.recorded_turn import RecordedTurn, TurnEnd
from kingdom.soldiers.agents.session_log import SessionLog

_TOKENS = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cacheReadTokens": "cache_read_input_tokens",
    "cacheWriteTokens": "cache_creation_input_tokens",
}


class ClaudeTurn(RecordedTurn):
    """The turn of one prompt.

    `before_usd` is the cost of the session before the turn. `limited_until` is the end of a usage limit, if any.
    """

    def __init__(self, prompt: Prompt, session_log: SessionLog[ClaudeHistory]) -> None:
        super().__init__(prompt, session_log)
        self.before_usd = 0.0
        self.limited_until: datetime | None = None

    def spend(self, session_usd: float) -> None:
        """Update the cost of the turn from the cost of the session."""
        cost_usd = round(session_usd - self.before_usd, 9)
        if cost_usd > self.cost_usd:
            self.cost_usd = cost_usd
            self.emit(CostUpdate(cost_usd))
        else:
            self.emit_heartbeat()

    def end(self, end: TurnEnd, usage: Mapping[str, Any] | None = None) -> None:
        """Record the end of the turn and report it."""
        tokens = {name: usage[theirs] for name, theirs in _TOKENS.items() if usage and theirs in usage}
        # No end is recorded if the agent is gone: it may have answered, and then its session file has the answer.
        if not isinstance(end, AgentGone):
            self._record_end(end, tokens)
        self._emit_end(end)
