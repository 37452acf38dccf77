"""Ask an agent once more if its last turn ends without a result of its Work."""

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
    take: Callable[[Prompt], Awaitable[TurnAnswer | TurnQuestion]],
) -> TurnAnswer | TurnQuestion:
    """Return the end of a turn that left a result; ask the agent once for a missing one, then fail.

    `take` sends the agent another prompt, under the same id so that a later inspection finds one prompt. The answer is
    that of the first turn, and the cost is that of both.
    """
    if isinstance(end, TurnQuestion) or read_result(space) is not None:
        return end
    left = None if prompt.budget_usd is None else max(0.0, prompt.budget_usd - end.cost_usd)
    try:
        again = await take(Prompt(id=prompt.id, text=RESULT_REQUEST, budget_usd=left))
    except TurnFailed as failure:
        failure.cost_usd += end.cost_usd
        raise
    cost = end.cost_usd + again.cost_usd
    if isinstance(again, TurnAnswer) and read_result(space) is None:
        raise AgentFailed("the agent ended its turn without a result, also after it was asked for one", cost)
    return msgspec.structs.replace(end if isinstance(again, TurnAnswer) else again, cost_usd=cost)
