"""One turn of Claude Code: what it tells of itself, what it has cost, and how it ended."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kingdom.soldiers.agents.claude.memory import Past
from kingdom.soldiers.agents.port import AgentGone, CostUpdate, Prompt
from kingdom.soldiers.agents.recorded_turn import End, RecordedTurn
from kingdom.soldiers.agents.session_log import SessionLog

_TOKENS = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cacheReadTokens": "cache_read_input_tokens",
    "cacheWriteTokens": "cache_creation_input_tokens",
}


class Turn(RecordedTurn):
    """The turn of one prompt; `before_usd` is what the session had cost when the turn began."""

    def __init__(self, prompt: Prompt, session_log: SessionLog[Past]) -> None:
        super().__init__(prompt, session_log)
        self.before_usd = 0.0
        self.limited_until: datetime | None = None

    def spend(self, session_usd: float) -> None:
        """Take in what the session has cost by now."""
        cost_usd = round(session_usd - self.before_usd, 9)
        if cost_usd > self.cost_usd:
            self.cost_usd = cost_usd
            self.emit(CostUpdate(cost_usd))
        else:
            self.emit_heartbeat()

    def end(self, end: End, usage: Mapping[str, Any] | None = None) -> None:
        """Tell how the turn ended."""
        tokens = {name: usage[theirs] for name, theirs in _TOKENS.items() if usage and theirs in usage}
        # Whether an agent that is gone had answered nobody knows here: its own transcript may.
        if not isinstance(end, AgentGone):
            self._record_end(end, tokens)
        self._emit_end(end)
