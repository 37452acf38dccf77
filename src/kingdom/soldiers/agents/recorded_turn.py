"""One turn of an agent that runs: what it tells is in the transcript before anybody hears of it."""

import asyncio
import json
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from kingdom.soldiers.agents.port import (
    CostUpdate,
    PetitionRequest,
    Prompt,
    TurnAnswer,
    TurnFailed,
    TurnQuestion,
    TurnUpdate,
    UsageLimited,
)
from kingdom.soldiers.agents.session_log import SessionLog
from kingdom.soldiers.agents.transcript import to_entry

End = TurnAnswer | TurnQuestion | TurnFailed
_DETAIL_MAX = 200


class RecordedTurn:
    """The turn of one prompt.

    `over` is set once the agent is done with it; `insisting` is the task that makes one end which was interrupted.
    """

    def __init__(self, prompt: Prompt, session_log: SessionLog[Any]) -> None:
        self.prompt = prompt
        self.cost_usd = 0.0
        self.interrupted = False
        self.interrupting: asyncio.Task[None] | None = None
        self.over = asyncio.Event()
        self._session_log = session_log
        self._told: asyncio.Queue[TurnUpdate | TurnFailed] = asyncio.Queue()

    @property
    def budget_spent(self) -> bool:
        """Return whether the turn has cost what it may."""
        return self.prompt.budget_usd is not None and self.cost_usd >= self.prompt.budget_usd

    async def next(self) -> TurnUpdate:
        """Return what happens next; raises the error with which the turn ends."""
        told = await self._told.get()
        if isinstance(told, TurnFailed):
            raise told
        return told

    def note(self, kind: str, *, durable: bool = False, **fields: Any) -> None:
        """Write down what nobody is told of."""
        self._session_log.write({"type": kind, "prompt": self.prompt.id, **fields}, durable=durable)

    def record_prompt(self, sent: str, **fields: Any) -> None:
        """Write down what is asked, and what the agent is sent where that is something else."""
        prompt, other = self.prompt, {} if sent == self.prompt.text else {"sent": sent}
        asked = {"text": prompt.text, "reply": prompt.reply, "continues": prompt.continues}
        self.note("prompt", durable=True, **asked, **fields, **other)

    def tell(self, update: TurnUpdate, **fields: Any) -> None:
        """Write down and tell what happens; what somebody may act upon is on the disk first."""
        self._write(update, **fields)
        self._told.put_nowait(update)

    def petition(self, kind: str, body: dict[str, Any]) -> None:
        """Tell that the agent asks the court for something."""
        self.tell(PetitionRequest(kind, body))

    def emit_heartbeat(self) -> None:
        """Tell that the turn goes on, although there is nothing to tell."""
        self._told.put_nowait(CostUpdate(self.cost_usd))

    def _record_end(self, end: End, spent: Mapping[str, Any]) -> None:
        if isinstance(end, TurnFailed):
            kind = "interrupted" if self.interrupted else "failed"
            until = {"until": end.until} if isinstance(end, UsageLimited) else {}
            self.note(kind, durable=True, reason=end.reason, costUsd=self.cost_usd, **until, **spent)
        else:
            self._write(end, **spent)

    def _emit_end(self, end: End) -> None:
        self._told.put_nowait(end)
        self.over.set()

    def _write(self, update: TurnUpdate, **fields: Any) -> None:
        durable = isinstance(update, PetitionRequest | TurnAnswer | TurnQuestion)
        self._session_log.write({**to_entry(update, self.prompt.id), **fields}, durable=durable)


def describe_tool_use(
    used_with: Mapping[str, Any], work_space: Path, *, naming: Collection[str], beside: Collection[str]
) -> str:
    """Return in short what a tool is used with, such as a path; what is more than that has a number of its own.

    The first of the fields `naming` tells what the tool is used upon; those `beside` say nothing about that.
    """
    whole = json.dumps(used_with, ensure_ascii=False, sort_keys=True)
    named = [used_with[name] for name in naming if isinstance(used_with.get(name), str)]
    shown = named[0].removeprefix(f"{work_space}/") if named else whole
    rest = [name for name, value in used_with.items() if value not in named and name not in beside]
    if len(shown) <= _DETAIL_MAX and (shown == whole or not rest):
        return shown
    return f"{shown[:_DETAIL_MAX]} #{zlib.crc32(whole.encode()):08x}"
