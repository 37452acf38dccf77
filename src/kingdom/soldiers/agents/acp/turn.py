"""One turn of an agent: what it tells of itself, what it has cost, and how it ended."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kingdom.soldiers.agents.acp.memory import Past
from kingdom.soldiers.agents.acp.profile import CostFrom, Profile
from kingdom.soldiers.agents.port import AgentFailed, AgentMessage, CostUpdate, Prompt, ToolUse
from kingdom.soldiers.agents.recorded_turn import End, RecordedTurn, describe_tool_use
from kingdom.soldiers.agents.session_log import SessionLog
from kingdom.soldiers.sandbox.prices import Price, Tokens

_OUTPUT_MAX = 2000
# What a tool is used upon, and what says nothing about that.
_NAMING = ("command", "filePath", "file_path", "path", "title")
_BESIDE = ("cwd", "description")


class Turn(RecordedTurn):
    """The turn of one prompt.

    `answer` is what the agent has said since it last used a tool, `notice` the latest that its adapter had to say.
    """

    def __init__(
        self, prompt: Prompt, session_log: SessionLog[Past], profile: Profile, price: Price, *, work_space: Path
    ) -> None:
        super().__init__(prompt, session_log)
        self.failed = False
        self.notice = ""
        self.answer = ""
        self._past = session_log.history
        self._profile = profile
        self._price = price
        self._work_space = work_space
        self._before_usd = session_log.history.cost_usd
        self._tokens: Tokens | None = None
        self._message = ""
        self._calls: set[str] = set()
        self._names: dict[str, str] = {}

    def hear(self, update: Mapping[str, Any]) -> None:
        """Take in what the agent tells of itself."""
        match update:
            case {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": str(text)}}:
                self._hear_text(text, str(update.get("messageId") or ""))
            case {"sessionUpdate": "tool_call" | "tool_call_update", "toolCallId": str()}:
                self._hear_tool(update)
            case {"sessionUpdate": "usage_update"}:
                self._hear_usage(update)
            case {"sessionUpdate": "session_info_update", "_meta": dict(meta)}:
                *way, word = self._profile.failed or ("",)
                self.failed = self.failed or (bool(word) and _at(meta, *way) == word)
            case {"sessionUpdate": "agent_thought_chunk" | "plan"}:
                self.emit_heartbeat()

    def call_tool(self, call: Mapping[str, Any]) -> None:
        """Tell that the agent uses a tool, the first time that anything is heard of it."""
        if call["toolCallId"] in self._calls:
            return
        self._calls.add(call["toolCallId"])
        self._finish_message()
        self.answer = ""
        self.emit(ToolUse(self._tool(call), _detail(call, self._work_space)), call=call["toolCallId"])

    def count(self, response: Mapping[str, Any]) -> None:
        """Take in what the turn has used up, as its end tells it."""
        match self._profile.cost_from, response:
            case CostFrom.USAGE, {"usage": dict(usage)}:
                prompt, cached = usage.get("inputTokens") or 0, usage.get("cachedReadTokens") or 0
                output = usage.get("outputTokens") or 0
                self._tokens = Tokens(input=max(0, prompt - cached), cache_read=cached, output=output)
            case CostFrom.USAGE, _:
                # What was counted on the way was said again and again by a turn that came to nothing.
                self._tokens = Tokens()
            case CostFrom.QUOTA, {"_meta": {"quota": {"token_count": dict(usage)}}}:
                self._tokens = Tokens(input=usage.get("input_tokens") or 0, output=usage.get("output_tokens") or 0)
        if self._tokens is not None:
            self._spend(self._price.of(self._tokens))
            self.cost_usd = self._price.of(self._tokens)

    def end(self, end: End) -> None:
        """Tell how the turn ended."""
        spent: dict[str, Any] = {"sessionUsd": self._past.cost_usd}
        if self._tokens is not None:
            spent |= {"inputTokens": self._tokens.prompt, "outputTokens": self._tokens.output}
            spent |= {"cacheReadTokens": self._tokens.cache_read}
        try:
            self._finish_message()
            self._record_end(end, spent)
        except OSError as error:
            # What is not on the disk has not happened.
            end = AgentFailed(f"the transcript cannot be written: {error}", self.cost_usd)
        self._emit_end(end)

    def _hear_text(self, text: str, message: str) -> None:
        if self._profile.notices and not message:
            self.notice = text.strip()
            self.record("noted", text=self.notice)
            return
        if message != self._message:
            self._finish_message()
            self.answer, self._message = "", message
        self.answer += text
        self._updates.put_nowait(AgentMessage(text))

    def _finish_message(self) -> None:
        """Write down a whole message: it comes in pieces that are cut anywhere."""
        if self.answer:
            self.record("said", text=self.answer)

    def _hear_tool(self, update: Mapping[str, Any]) -> None:
        status = update.get("status")
        if status == "pending":
            # Not yet what it is used with: so far its title can only be its name.
            self._names[update["toolCallId"]] = str(update.get("title") or "")
            return
        self.call_tool(update)
        if status in ("completed", "failed"):
            text = "".join(_texts(update))[:_OUTPUT_MAX]
            self.record("output", call=update["toolCallId"], text=text, isError=status == "failed")
        self.emit_heartbeat()

    def _tool(self, call: Mapping[str, Any]) -> str:
        """Return the name of a tool, which agents hide in different places."""
        match call:
            case {"rawInput": {"server": str(server), "tool": str(tool)}}:
                return f"mcp__{server}/{tool}"
            case {"name": str(tool)} if tool:
                return tool
        name, _, rest = str(call["toolCallId"]).partition("__")
        known = name if rest and self._profile.tool_in_id else self._names.get(call["toolCallId"])
        return known or str(call.get("kind") or "tool")

    def _hear_usage(self, update: Mapping[str, Any]) -> None:
        match self._profile.cost_from, update:
            case CostFrom.SESSION, {"cost": {"amount": int() | float() as session_usd}}:
                self._spend(round(session_usd - self._before_usd, 9), sessionUsd=session_usd)
            case CostFrom.USAGE, {"used": int(used)}:
                # What it read and what it wrote are told apart only in the end.
                self._spend(round(self.cost_usd + self._price.of(Tokens(input=used)), 9))

    def _spend(self, cost_usd: float, **fields: Any) -> None:
        if cost_usd > self.cost_usd:
            self.cost_usd = cost_usd
            self.emit(CostUpdate(cost_usd), **fields)


def _at(document: Any, *way: str) -> Any:
    for name in way:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _detail(call: Mapping[str, Any], work_space: Path) -> str:
    """Return in short what a tool is used with, such as a path; what is more than that has a number of its own."""
    used_with = call.get("rawInput")
    if not isinstance(used_with, dict) or not used_with:
        used_with = {"title": " ".join([str(call.get("title") or ""), *_texts(call)])}
    return describe_tool_use(used_with, work_space, subject_fields=_NAMING, ignored_fields=_BESIDE)


def _texts(update: Mapping[str, Any]) -> list[str]:
    parts = [part.get("content") for part in update.get("content") or () if isinstance(part, dict)]
    return [str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part]
