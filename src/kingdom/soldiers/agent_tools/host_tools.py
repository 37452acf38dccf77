"""The tools of one agent on the host: they store results, ask people and make petitions."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from kingdom.errors import KingdomError, MalformedEvent, ProgramFailed, describe_error
from kingdom.soldiers.agent_tools.calls import (
    TOOLS,
    AskHumanInput,
    PetitionInput,
    ReadResultsInput,
    RememberInput,
    ReportResultInput,
    parse_tool_input,
)
from kingdom.soldiers.agent_tools.port import AgentQuestion, AgentTools, ToolReply
from kingdom.soldiers.agent_tools.result_file import add_memory, write_result
from kingdom.soldiers.redaction import DEFAULT_REDACTION, Redaction
from kingdom.text import sentence, with_reason
from kingdom.workflow.past_results import NOTICE, PastResult, describe_results
from kingdom.workflow.verdicts import PetitionVerdict

# How long a call waits for the verdict on a petition. Agents wait longer than this for a tool.
VERDICT_LIMIT = timedelta(seconds=20)
_PETITIONS_MAX = 50
_RESULTS_BYTES_MAX = 32 * 1024

_NO_TURN = "You have no prompt at the moment, so this call is not accepted: wait for your next prompt, and call again."
_ASKED_ALREADY = "You have asked a person and must wait: end your turn now. The answer comes as your next prompt."
_ASKED = (
    "A person is asked. Stop here: end your turn now, without any further work. The answer comes as your next prompt."
)
_REPORTED = "Your result is stored. Unless there is more to do, end your turn; a later report replaces this one."
_REMEMBERED = "It is stored. Agents after you get it once you have reported your result."
_NOTED = "It is noted and will be decided. Continue without it, and do not ask for the same again."
_NO_RESULTS = "There are no results of earlier work in the repositories of your checkouts."
_TOO_MANY = f"You have made {_PETITIONS_MAX} petitions in this turn, which is the limit: this one is not accepted."


@dataclass(slots=True)
class _ToolTurn:
    """The tool calls of one turn: the number of its petitions, and the question that ends the turn.

    `asked_in_result` means that the question is part of the reported result, which a later report may replace.
    """

    prompt_id: str
    on_petition: Callable[[str, dict[str, Any]], None]
    petitions: int = 0
    question: AgentQuestion | None = None
    asked_in_result: bool = False


def petition_id(prompt_id: str, number: int) -> str:
    """Return the id of a petition in the turn of a prompt; the first petition has the number 1."""
    task_or_report, _, attempt = prompt_id.partition("#")
    return f"{task_or_report}-a{attempt}-p{number}"


async def _no_results(_count: int) -> list[PastResult]:
    return []


class HostTools(AgentTools):
    """Handles the tool calls of the agent in one WorkSpace.

    `await_verdict` takes the id of a petition and waits for the decision on it. If the decision takes longer than
    `verdict_limit`, the agent continues without it. `find_results` takes a number and returns at most that many earlier
    results, the newest first. Secrets are removed from all arguments.
    """

    def __init__(
        self,
        space: Path,
        await_verdict: Callable[[str], Awaitable[PetitionVerdict | None]],
        *,
        find_results: Callable[[int], Awaitable[list[PastResult]]] = _no_results,
        verdict_limit: timedelta = VERDICT_LIMIT,
        redaction: Redaction = DEFAULT_REDACTION,
    ) -> None:
        self.tools = TOOLS
        self._space = space
        self._await_verdict = await_verdict
        self._find_results = find_results
        self._verdict_limit = verdict_limit
        self._redaction = redaction
        self._turn: _ToolTurn | None = None
        # The prompt of the last turn, and the number of its petitions.
        self._last_turn = ("", 0)

    def begin(self, prompt_id: str, on_petition: Callable[[str, dict[str, Any]], None]) -> None:
        """Accept calls for a new turn, in which the agent has asked no question yet."""
        (last_prompt_id, petitions), self._last_turn = self._last_turn, (prompt_id, 0)
        # A prompt may be sent twice, such as after a loop. Then the numbers of its petitions continue.
        self._turn = _ToolTurn(prompt_id, on_petition, petitions if last_prompt_id == prompt_id else 0)

    def end(self) -> AgentQuestion | None:
        """Stop accepting calls, and return the question of the turn."""
        turn, self._turn = self._turn, None
        if turn:
            self._last_turn = (turn.prompt_id, turn.petitions)
        return turn.question if turn else None

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolReply:
        """Handle a call of a tool."""
        turn = self._turn
        try:
            # Secrets are removed before anything else, because people read the arguments, and some are published.
            call = parse_tool_input(tool, self._redaction.value(arguments))
            if turn is None:
                return ToolReply(text=_NO_TURN, is_error=True)
            if turn.question and not turn.asked_in_result and not isinstance(call, RememberInput):
                return ToolReply(text=_ASKED_ALREADY, is_error=True)
            match call:
                case ReportResultInput():
                    write_result(self._space, call)
                    turn.asked_in_result = call.status == "needs_human"
                    turn.question = AgentQuestion(text=call.question, choices=()) if turn.asked_in_result else None
                    return ToolReply(text=_ASKED if turn.asked_in_result else _REPORTED)
                case RememberInput():
                    add_memory(self._space, call)
                    return ToolReply(text=_REMEMBERED)
                case AskHumanInput():
                    text = f"{call.question}\n\n{call.context}" if call.context.strip() else call.question
                    turn.question, turn.asked_in_result = AgentQuestion(text=text, choices=call.choices), False
                    return ToolReply(text=_ASKED)
                case PetitionInput():
                    return await self._petition(turn, call)
                case ReadResultsInput():
                    return await self._read_results(call)
        except (MalformedEvent, ProgramFailed, OSError, RecursionError) as error:
            return ToolReply(text=str(error), is_error=True)

    async def _read_results(self, call: ReadResultsInput) -> ToolReply:
        try:
            async with asyncio.timeout(self._verdict_limit.total_seconds()):
                results = await self._find_results(call.count)
        except TimeoutError:
            return _unread_results("the store did not answer in time")
        except (OSError, KingdomError) as error:
            return _unread_results(describe_error(error))
        text = describe_results(results, _RESULTS_BYTES_MAX)
        quoted = "\n".join(f"> {line}".rstrip() for line in text.splitlines())
        return ToolReply(text=f"{NOTICE}\n\n{quoted}" if text else _NO_RESULTS)

    async def _petition(self, turn: _ToolTurn, call: PetitionInput) -> ToolReply:
        if turn.petitions >= _PETITIONS_MAX:
            return ToolReply(text=_TOO_MANY, is_error=True)
        turn.on_petition(call.kind, call.body)
        turn.petitions += 1
        try:
            async with asyncio.timeout(self._verdict_limit.total_seconds()):
                verdict = await self._await_verdict(petition_id(turn.prompt_id, turn.petitions))
        except (TimeoutError, OSError, KingdomError):
            # The petition was sent; only its verdict is not known yet.
            verdict = None
        return _verdict_reply(verdict)


def _unread_results(why: str) -> ToolReply:
    return ToolReply(text=f"The results cannot be read now ({why}): continue without them.", is_error=True)


def _verdict_reply(verdict: PetitionVerdict | None) -> ToolReply:
    if verdict is None:
        return ToolReply(text=_NOTED)

    def explain(word: str) -> str:
        return sentence(with_reason(word, verdict.reason))

    match verdict.granted:
        case True:
            return ToolReply(
                text=f"{explain('Granted')} It is allowed and will be done for you; do not ask for the same again."
            )
        case False:
            return ToolReply(
                text=f"{explain('Refused')} Nothing was done. Do not ask for the same again.", is_error=True
            )
        case None:
            text = f"{explain('It waits for a decision')} Continue without it, and do not ask for the same again."
            return ToolReply(text=text)
