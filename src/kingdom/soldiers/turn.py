"""One turn of an agent, within its time."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from datetime import timedelta

from kingdom.soldiers.agent import Agent, AgentFailed, Answered, Asked, Prompt, TurnTooLong, Update

# An agent that shows no sign of life for so long hangs.
IDLE_LIMIT = timedelta(minutes=10)


async def take_turn(
    agent: Agent,
    prompt: Prompt,
    limit: timedelta,
    on_update: Callable[[Update], None],
    *,
    idle_limit: timedelta = IDLE_LIMIT,
) -> Answered | Asked:
    """Return how a turn ended, and tell what happened on the way; one that takes too long is interrupted and fails."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limit.total_seconds()

    def patience() -> float:
        return min(end, loop.time() + idle_limit.total_seconds())

    time = asyncio.timeout_at(patience())
    try:
        async with time, aclosing(agent.send(prompt)) as turn:
            async for update in turn:
                if isinstance(update, Answered | Asked):
                    return update
                on_update(update)
                time.reschedule(patience())
    except TimeoutError as error:
        if not time.expired():
            raise
        if loop.time() < end:
            raise TurnTooLong(f"no sign of life for {idle_limit.total_seconds():g} s") from error
        reason = f"no answer within {limit.total_seconds():g} s: give the task more time, or a smaller query"
        raise TurnTooLong(reason) from error
    raise AgentFailed("the agent ended its turn without an answer")
