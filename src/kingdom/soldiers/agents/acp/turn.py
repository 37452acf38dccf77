"""One turn of an ACP agent: its updates, its cost and its end."""

from collections.abc import Mapping
from typing import Any

from kingdom.soldiers.agents.acp.history import AcpHistory
from kingdom.soldiers.agents.acp.profile import AcpProfile, CostSource
from kingdom.soldiers.agents.port import AgentFailed, AgentMessage, CostUpdate, Launch, Prompt, ToolUse
from kingdom.soldiers.agents.recorded_turn import RecordedTurn, TurnEnd, describe_tool_use
from kingdom.soldiers.agents.session_log import SessionLog
from kingdom.soldiers.sandbox.prices import Price, Tokens

_OUTPUT_MAX = 2000
# Fields that say what a tool call acts on, and fields that do not matter when calls are compared.
_TARGET_FIELDS = ("command", "filePath", "file_path", "path", "title")
_IRRELEVANT_FIELDS = ("cwd", "description")


class AcpTurn(RecordedTurn):
    """The turn of one prompt.

    `answer` is the agent's latest message, or empty after a tool call. `notice` is the latest notice of the adapter.
    `failed` is set once the adapter reports that the turn failed.
    """

    def __init__(
        self,
        prompt: Prompt,
        session_log: SessionLog[AcpHistory],
        profile: AcpProfile,
        price: Price,
        *,
        launch: Launch,
    ) -> None:
        super().__init__(prompt, session_log)
        self.failed = False
        self.notice = ""
        self.answer = ""
        self._history = session_log.history
        self._profile = profile
        self._price = price
        self._launch = launch
        self._before_usd = session_log.history.cost_usd
        self._tokens: Tokens | None = None
        self._message = ""
        self._calls: set[str] = set()
        self._names: dict[str, str] = {}

    def receive(self, update: Mapping[str, Any]) -> None:
        """Apply an update of the session."""
        match update:
            case {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": str(text)}}:
                self._receive_text(text, str(update.get("messageId") or ""))
            case {"sessionUpdate": "tool_call" | "tool_call_update", "toolCallId": str()}:
                self._receive_tool(update)
            case {"sessionUpdate": "usage_update"}:
                self._receive_usage(update)
            case {"sessionUpdate": "session_info_update", "_meta": dict(meta)}:
                *path, value = self._profile.failure_marker or ("",)
                self.failed = self.failed or (bool(value) and _value_at(meta, *path) == value)
            case {"sessionUpdate": "agent_thought_chunk" | "plan"}:
                self.emit_heartbeat()

    def report_tool_call(self, call: Mapping[str, Any]) -> None:
        """Report a tool call when it is first mentioned."""
        if call["toolCallId"] in self._calls:
            return
        self._calls.add(call["toolCallId"])
        self._finish_message()
        self.answer = ""
        self.emit(ToolUse(self._tool_name(call), _detail(call, self._launch)), call=call["toolCallId"])

    def count_usage(self, response: Mapping[str, Any]) -> None:
        """Count the usage in the final response of a turn."""
        match self._profile.cost_source, response:
            case CostSource.USAGE, {"usage": dict(usage)}:
                prompt, cached = usage.get("inputTokens") or 0, usage.get("cachedReadTokens") or 0
                output = usage.get("outputTokens") or 0
                self._tokens = Tokens(input=max(0, prompt - cached), cache_read=cached, output=output)
            case CostSource.USAGE, _:
                # A response without usage means that the turn failed. The usage that was counted during the turn is
                # dropped, because the agent has reported it repeatedly.
                self._tokens = Tokens()
            case CostSource.QUOTA, {"_meta": {"quota": {"token_count": dict(usage)}}}:
                self._tokens = Tokens(input=usage.get("input_tokens") or 0, output=usage.get("output_tokens") or 0)
        if self._tokens is not None:
            self._spend(self._price.cost(self._tokens))
            self.cost_usd = self._price.cost(self._tokens)

    def end(self, end: TurnEnd) -> None:
        """Record the end of the turn and report it."""
        spent: dict[str, Any] = {"sessionUsd": self._history.cost_usd}
        if self._tokens is not None:
            spent |= {"inputTokens": self._tokens.prompt, "outputTokens": self._tokens.output}
            spent |= {"cacheReadTokens": self._tokens.cache_read}
        try:
            self._finish_message()
            self._record_end(end, spent)
        except OSError as error:
            # An end that is not in the transcript could not be found later, so the turn fails.
            end = AgentFailed(f"the transcript cannot be written: {error}", self.cost_usd)
        self._emit_end(end)

    def _receive_text(self, text: str, message: str) -> None:
        if self._profile.has_notices and not message:
            self.notice = text.strip()
            self.record("noted", text=self.notice)
            return
        if message != self._message:
            self._finish_message()
            self.answer, self._message = "", message
        self.answer += text
        self._updates.put_nowait(AgentMessage(text))

    def _finish_message(self) -> None:
        """Record a whole message, which arrives in arbitrary pieces."""
        if self.answer:
            self.record("said", text=self.answer)

    def _receive_tool(self, update: Mapping[str, Any]) -> None:
        status = update.get("status")
        if status == "pending":
            # The arguments of a pending call are not known yet, and its title is still the name of the tool.
            self._names[update["toolCallId"]] = str(update.get("title") or "")
            return
        self.report_tool_call(update)
        if status in ("completed", "failed"):
            text = self._launch.redaction.beginning("".join(_texts(update)), _OUTPUT_MAX)
            self.record("output", call=update["toolCallId"], text=text, isError=status == "failed")
        self.emit_heartbeat()

    def _tool_name(self, call: Mapping[str, Any]) -> str:
        """Return the name of a tool, which agents report in different fields."""
        match call:
            case {"rawInput": {"server": str(server), "tool": str(tool)}}:
                return f"mcp__{server}/{tool}"
            case {"name": str(tool)} if tool:
                return tool
        name, _, rest = str(call["toolCallId"]).partition("__")
        known = name if rest and self._profile.tool_name_in_call_id else self._names.get(call["toolCallId"])
        return known or str(call.get("kind") or "tool")

    def _receive_usage(self, update: Mapping[str, Any]) -> None:
        match self._profile.cost_source, update:
            case CostSource.SESSION, {"cost": {"amount": int() | float() as session_usd}}:
                self._spend(round(session_usd - self._before_usd, 9), sessionUsd=session_usd)
            case CostSource.USAGE, {"used": int(used)}:
                # During a turn the agent does not separate input from output, so all tokens are charged as input.
                self._spend(round(self.cost_usd + self._price.cost(Tokens(input=used)), 9))

    def _spend(self, cost_usd: float, **fields: Any) -> None:
        if cost_usd > self.cost_usd:
            self.cost_usd = cost_usd
            self.emit(CostUpdate(cost_usd), **fields)


def _value_at(document: Any, *path: str) -> Any:
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _detail(call: Mapping[str, Any], launch: Launch) -> str:
    """Return a short form of the arguments of a tool call; a call without arguments is described by its title."""
    arguments = call.get("rawInput")
    if not isinstance(arguments, dict) or not arguments:
        arguments = {"title": " ".join([str(call.get("title") or ""), *_texts(call)])}
    return describe_tool_use(arguments, launch, subject_fields=_TARGET_FIELDS, ignored_fields=_IRRELEVANT_FIELDS)


def _texts(update: Mapping[str, Any]) -> list[str]:
    parts = [part.get("content") for part in update.get("content") or () if isinstance(part, dict)]
    return [str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part]
