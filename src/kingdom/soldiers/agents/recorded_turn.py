"""One turn of a running agent, which is recorded in the transcript."""

import asyncio
import json
import zlib
from collections.abc import Collection, Mapping
from typing import Any

from kingdom.soldiers.agents.port import (
    CostUpdate,
    Launch,
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

TurnEnd = TurnAnswer | TurnQuestion | TurnFailed
_DETAIL_MAX = 200


class RecordedTurn:
    """The turn of one prompt.

    `over` is set once the agent is done with the turn; `interrupting` is the task that interrupts the agent until then.
    """

    def __init__(self, prompt: Prompt, session_log: SessionLog[Any]) -> None:
        self.prompt = prompt
        self.cost_usd = 0.0
        self.interrupted = False
        self.interrupting: asyncio.Task[None] | None = None
        self.over = asyncio.Event()
        self._session_log = session_log
        self._updates: asyncio.Queue[TurnUpdate | TurnFailed] = asyncio.Queue()

    @property
    def budget_spent(self) -> bool:
        """Return whether the turn has used up its budget."""
        return self.prompt.budget_usd is not None and self.cost_usd >= self.prompt.budget_usd

    async def next(self) -> TurnUpdate:
        """Return the next update; raises the error that ends the turn."""
        update = await self._updates.get()
        if isinstance(update, TurnFailed):
            raise update
        return update

    def record(self, kind: str, *, durable: bool = False, **fields: Any) -> None:
        """Write an entry to the transcript without emitting an update."""
        self._session_log.write({"type": kind, "prompt": self.prompt.id, **fields}, durable=durable)

    def record_prompt(self, sent: str, **fields: Any) -> None:
        """Record the prompt; if the text that the agent gets (`sent`) differs from it, record that text too."""
        prompt, other = self.prompt, {} if sent == self.prompt.text else {"sent": sent}
        asked = {"text": prompt.text, "reply": prompt.reply, "continues": prompt.continues}
        self.record("prompt", durable=True, **asked, **fields, **other)

    def emit(self, update: TurnUpdate, **fields: Any) -> None:
        """Record an update, then emit it; petitions and the end of the turn are synced to disk first."""
        self._write(update, **fields)
        self._updates.put_nowait(update)

    def emit_petition(self, kind: str, body: dict[str, Any]) -> None:
        """Emit a petition."""
        self.emit(PetitionRequest(kind, body))

    def emit_heartbeat(self) -> None:
        """Emit the unchanged cost, to show that the turn is still active."""
        self._updates.put_nowait(CostUpdate(self.cost_usd))

    def _record_end(self, end: TurnEnd, spent: Mapping[str, Any]) -> None:
        if isinstance(end, TurnFailed):
            kind = "interrupted" if self.interrupted else "failed"
            until = {"until": end.until} if isinstance(end, UsageLimited) else {}
            self.record(kind, durable=True, reason=end.reason, costUsd=self.cost_usd, **until, **spent)
        else:
            self._write(end, **spent)

    def _emit_end(self, end: TurnEnd) -> None:
        self._updates.put_nowait(end)
        self.over.set()

    def _write(self, update: TurnUpdate, **fields: Any) -> None:
        durable = isinstance(update, PetitionRequest | TurnAnswer | TurnQuestion)
        self._session_log.write({**to_entry(update, self.prompt.id), **fields}, durable=durable)


def describe_tool_use(
    arguments: Mapping[str, Any], launch: Launch, *, subject_fields: Collection[str], ignored_fields: Collection[str]
) -> str:
    """Return a short form of a tool call's arguments, such as a path, with a hash if it leaves out something.

    `subject_fields` are the fields, in order of preference, that say what the tool acts on. `ignored_fields` may be
    left out without a hash.
    """
    whole = json.dumps(arguments, ensure_ascii=False, sort_keys=True)
    named = [arguments[name] for name in subject_fields if isinstance(arguments.get(name), str)]
    shown = named[0].removeprefix(f"{launch.work_space}/") if named else whole
    rest = [name for name, value in arguments.items() if value not in named and name not in ignored_fields]
    if len(shown) <= _DETAIL_MAX and (shown == whole or not rest):
        return shown
    return f"{launch.redaction.beginning(shown, _DETAIL_MAX)} #{zlib.crc32(whole.encode()):08x}"
