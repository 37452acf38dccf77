"""One turn of Claude Code: what it tells of itself, what it has cost, and how it ended."""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kingdom.soldiers.agent import (
    AgentGone,
    Answered,
    Asked,
    Petitioned,
    Prompt,
    Spent,
    TurnFailed,
    Update,
    UsageLimited,
)
from kingdom.soldiers.claude.memory import Past
from kingdom.soldiers.notebook import Notebook
from kingdom.soldiers.transcript import entry_of

End = Answered | Asked | TurnFailed
_TOKENS = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cacheReadTokens": "cache_read_input_tokens",
    "cacheWriteTokens": "cache_creation_input_tokens",
}


class Turn:
    """The turn of one prompt; everything is in the transcript before anybody is told.

    `before_usd` is what the session had cost when the turn began; `over` is set once the agent is done with it.
    """

    def __init__(self, prompt: Prompt, notebook: Notebook[Past]) -> None:
        self.prompt = prompt
        self.before_usd = 0.0
        self.cost_usd = 0.0
        self.limited_until: datetime | None = None
        self.interrupted = False
        self.insisting: asyncio.Task[None] | None = None
        self.over = asyncio.Event()
        self._notebook = notebook
        self._told: asyncio.Queue[Update | TurnFailed] = asyncio.Queue()

    @property
    def budget_spent(self) -> bool:
        """Return whether the turn has cost what it may."""
        return self.prompt.budget_usd is not None and self.cost_usd >= self.prompt.budget_usd

    async def next(self) -> Update:
        """Return what happens next; raises the error with which the turn ends."""
        told = await self._told.get()
        if isinstance(told, TurnFailed):
            raise told
        return told

    def note(self, kind: str, *, durable: bool = False, **fields: Any) -> None:
        """Write down what nobody is told of."""
        self._notebook.write({"type": kind, "prompt": self.prompt.id, **fields}, durable=durable)

    def tell(self, update: Update, **fields: Any) -> None:
        """Write down and tell what happens; what somebody may act upon is on the disk first."""
        durable = isinstance(update, Petitioned | Answered | Asked)
        self._notebook.write({**entry_of(update, self.prompt.id), **fields}, durable=durable)
        self._told.put_nowait(update)

    def petition(self, kind: str, body: dict[str, Any]) -> None:
        """Tell that the agent asks the court for something."""
        self.tell(Petitioned(kind, body))

    def give_sign_of_life(self) -> None:
        """Tell that the turn goes on, although there is nothing to tell."""
        self._told.put_nowait(Spent(self.cost_usd))

    def spend(self, session_usd: float) -> None:
        """Take in what the session has cost by now."""
        cost_usd = round(session_usd - self.before_usd, 9)
        if cost_usd > self.cost_usd:
            self.cost_usd = cost_usd
            self.tell(Spent(cost_usd))
        else:
            self.give_sign_of_life()

    def end(self, end: End, usage: Mapping[str, Any] | None = None) -> None:
        """Tell how the turn ended."""
        tokens = {name: usage[theirs] for name, theirs in _TOKENS.items() if usage and theirs in usage}
        if isinstance(end, AgentGone):
            # Whether it had answered nobody knows here: its own transcript may.
            self._told.put_nowait(end)
        elif isinstance(end, TurnFailed):
            until = {"until": end.until} if isinstance(end, UsageLimited) else {}
            kind = "interrupted" if self.interrupted else "failed"
            self.note(kind, durable=True, reason=end.reason, costUsd=self.cost_usd, **until, **tokens)
            self._told.put_nowait(end)
        else:
            self.tell(end, **tokens)
        self.over.set()
