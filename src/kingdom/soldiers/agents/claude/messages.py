"""Translate messages of Claude Code into updates of a turn and its end."""

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any

from claude_agent_sdk import AssistantMessage, ContentBlock, ResultMessage, TextBlock, ToolResultBlock, ToolUseBlock

from kingdom.clock import utc_now
from kingdom.soldiers.agent_tools.port import AgentQuestion
from kingdom.soldiers.agents.claude.turn import ClaudeTurn
from kingdom.soldiers.agents.claude.usage_limit import limited_until
from kingdom.soldiers.agents.port import (
    INTERRUPTED,
    AgentFailed,
    AgentMessage,
    BudgetSpent,
    Launch,
    ToolUse,
    TurnAnswer,
    TurnQuestion,
    TurnUpdate,
    UsageLimited,
)
from kingdom.soldiers.agents.recorded_turn import TurnEnd, describe_tool_use
from kingdom.soldiers.redaction import Redaction

# The `terminal_reason` of a turn that a hook ended.
_STOPPED = "hook_stopped"
_TARGET_FIELDS = ("command", "file_path", "notebook_path", "path")
_IRRELEVANT_FIELDS = ("description",)
_OUTPUT_MAX = 4000


def updates_in(message: AssistantMessage, launch: Launch) -> Iterator[tuple[TurnUpdate, dict[str, Any]]]:
    """Yield the updates in a message, each with additional fields for the transcript."""
    for block in message.content:
        match block:
            case TextBlock(text=text) if text:
                yield AgentMessage(text), {}
            case ToolUseBlock(id=call, name=tool, input=arguments):
                detail = describe_tool_use(
                    arguments, launch, subject_fields=_TARGET_FIELDS, ignored_fields=_IRRELEVANT_FIELDS
                )
                yield ToolUse(tool, detail), {"call": call}


def outputs_in(blocks: Iterable[ContentBlock], redaction: Redaction) -> Iterator[dict[str, Any]]:
    """Yield the results of tools as fields for the transcript."""
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            parts = block.content if isinstance(block.content, list) else [{"text": block.content or ""}]
            text = "\n".join(str(part.get("text", "")) for part in parts)
            shown = redaction.beginning(text, _OUTPUT_MAX)
            yield {"call": block.tool_use_id, "text": shown, "isError": bool(block.is_error)}


def conclude_turn(turn: ClaudeTurn, result: ResultMessage, question: AgentQuestion | None) -> TurnEnd:
    """Return how a turn ended, according to the result message and the question that the agent asked, if any.

    The text of the result only decides whether a failed turn has met a usage limit.
    """
    text, cost = result.result or "", turn.cost_usd
    failed = result.is_error or result.subtype != "success" or result.terminal_reason == _STOPPED
    if failed and turn.interrupted:
        return AgentFailed(INTERRUPTED, cost)
    if question is not None:
        return TurnQuestion(question.text, question.choices, cost)
    if result.terminal_reason == _STOPPED and turn.budget_spent:
        allowed = turn.prompt.budget_usd
        return BudgetSpent(
            f"the turn has cost ${cost:g} and may cost ${allowed:g}: raise the budget, then continue", cost
        )
    if not failed:
        return TurnAnswer(text, cost)
    why = "; ".join(result.errors or ()) or text or result.terminal_reason or result.subtype
    known = turn.limited_until if result.api_error_status == HTTPStatus.TOO_MANY_REQUESTS else None
    until = known or limited_until(why, utc_now())
    return AgentFailed(why, cost) if until is None else UsageLimited(why, until, cost)
