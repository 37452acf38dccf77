"""Ask an agent for the result of its Work if its last turn ends without one."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from kingdom.soldiers.agents.port import AgentFailed, Prompt, TurnAnswer, TurnFailed, TurnQuestion
from kingdom.soldiers.turns.result import read_result

RESULT_REQUEST = """\
You ended your turn without reporting a result. Finish what is missing, then report your result with the tool \
report_result of the MCP server `kingdom`: status success, failed, needs_human or skipped, and a summary. If you \
cannot continue, report failed and say why.\
"""


async def request_missing_result(
    prompt: Prompt,
    end: TurnAnswer | TurnQuestion,
    space: Path,
    take_turn: Callable[[Prompt], Awaitable[TurnAnswer | TurnQuestion]],
) -> TurnAnswer | TurnQuestion:
    """Return `end` if the WorkSpace has a result. Otherwise ask the agent for its result in a second turn.

    Raises AgentFailed if the result is still missing after the second turn. Both turns have the same prompt id, so a
    later inspection finds one prompt. The answer is that of the first turn, and the cost is that of both turns.
    """
    if isinstance(end, TurnQuestion) or read_result(space) is not None:
        return end
    budget_left = None if prompt.budget_usd is None else max(0.0, prompt.budget_usd - end.cost_usd)
    try:
        second_end = await take_turn(Prompt(id=prompt.id, text=RESULT_REQUEST, budget_usd=budget_left))
    except TurnFailed as failure:
        failure.cost_usd += end.cost_usd
        raise
    cost = end.cost_usd + second_end.cost_usd
    if isinstance(second_end, TurnAnswer) and read_result(space) is None:
        raise AgentFailed("the agent ended its turn without a result, also after it was asked for one", cost)
    return msgspec.structs.replace(end if isinstance(second_end, TurnAnswer) else second_end, cost_usd=cost)
