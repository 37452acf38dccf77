"""Turns of which no cost is forgotten, however they end."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import structlog

from kingdom.soldiers.agents.port import (
    Agent,
    AgentGone,
    CostUpdate,
    Launch,
    Prompt,
    TurnAnswer,
    TurnFailed,
    TurnQuestion,
    TurnUpdate,
)
from kingdom.soldiers.agents.transcript import append_entry
from kingdom.soldiers.turns.turn import take_turn

_log = structlog.get_logger("kingdom.soldiers")


class MeteredTurns:
    """The turns that one command needs; `say` tells what they have cost where one is cut off, for nobody else does.

    What the meter of a launch counts is noted in the transcript as it grows: it counts also where this host is killed.
    """

    def __init__(self, agent: Agent, launch: Launch, limit: timedelta, on_cut_off: Callable[[float], None]) -> None:
        self._agent = agent
        self._launch = launch
        self._limit = limit
        self._on_cut_off = on_cut_off
        self._cost_before = 0.0

    async def take(self, prompt: Prompt, on_update: Callable[[TurnUpdate], None]) -> TurnAnswer | TurnQuestion:
        """Return how a turn ended; one is cut off by the end of its agent, or by whoever ends this."""
        cost_usd = 0.0

        def handle(update: TurnUpdate) -> None:
            nonlocal cost_usd
            if isinstance(update, CostUpdate) and update.cost_usd > cost_usd:
                cost_usd = update.cost_usd
                self._note_cost(prompt, cost_usd)
            on_update(update)

        meter = self._launch.meter
        if meter is not None:
            meter.begin_turn(prompt.budget_usd)
        try:
            end = await take_turn(self._agent, prompt, self._limit, handle, meter=meter)
            cost_usd = end.cost_usd
        except TurnFailed as failure:
            cost_usd = failure.cost_usd
            if isinstance(failure, AgentGone):
                self._tell(cost_usd)
            raise
        except BaseException:
            self._tell(cost_usd)
            raise
        finally:
            self._settle(prompt, cost_usd)
        self._cost_before += end.cost_usd
        return end

    def _tell(self, cost_usd: float) -> None:
        if total := self._cost_before + cost_usd:
            self._on_cut_off(total)

    def _note_cost(self, prompt: Prompt, cost_usd: float) -> None:
        if self._launch.meter is not None and (total := self._cost_before + cost_usd):
            self._note({"type": "metered", "prompt": prompt.id, "costUsd": total})

    def _settle(self, prompt: Prompt, cost_usd: float) -> None:
        """Let what a turn tells be claimed, and see whether the agent would have told the same."""
        self._note_cost(prompt, cost_usd)
        meter = self._launch.meter
        if meter is not None and (difference := meter.end_turn(cost_usd)):
            _log.warning(difference, soldier=self._launch.soldier_id)
            self._note({"type": "noted", "text": difference})

    def _note(self, entry: dict[str, Any]) -> None:
        try:
            append_entry(self._launch.transcript, entry, durable=False, redaction=self._launch.redaction)
        except OSError as error:
            # What it costs is told all the same.
            _log.warning("a transcript cannot be written", soldier=self._launch.soldier_id, error=str(error))
