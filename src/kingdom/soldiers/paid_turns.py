"""Turns of which no cost is forgotten, however they end."""

from collections.abc import Callable
from datetime import timedelta

from kingdom.soldiers.agent import Agent, AgentGone, Answered, Asked, Prompt, Spent, TurnFailed, Update
from kingdom.soldiers.turn import take_turn


class PaidTurns:
    """The turns that one command needs; `say` tells what they have cost where one is cut off, for nobody else does."""

    def __init__(self, agent: Agent, limit: timedelta, say: Callable[[float], None]) -> None:
        self._agent = agent
        self._limit = limit
        self._say = say
        self._cost_before = 0.0

    async def take(self, prompt: Prompt, hear: Callable[[Update], None]) -> Answered | Asked:
        """Return how a turn ended; one is cut off by the end of its agent, or by whoever ends this."""
        cost_usd = 0.0

        def on_update(update: Update) -> None:
            nonlocal cost_usd
            cost_usd = update.cost_usd if isinstance(update, Spent) else cost_usd
            hear(update)

        try:
            end = await take_turn(self._agent, prompt, self._limit, on_update)
        except AgentGone as gone:
            self._tell(gone.cost_usd)
            raise
        except TurnFailed:
            raise
        except BaseException:
            self._tell(cost_usd)
            raise
        self._cost_before += end.cost_usd
        return end

    def _tell(self, cost_usd: float) -> None:
        if total := self._cost_before + cost_usd:
            self._say(total)
