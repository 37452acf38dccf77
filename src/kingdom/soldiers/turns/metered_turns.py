"""Turns whose cost is always reported, however they end."""

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
    """The turns of one command of the engine.

    A turn is cut off if its agent ends or if it is cancelled; then `on_cut_off` gets the cost of all turns so far. The
    cost that the meter counts is appended to the transcript as it grows, so it survives the death of this host.
    """

    def __init__(self, agent: Agent, launch: Launch, limit: timedelta, on_cut_off: Callable[[float], None]) -> None:
        self._agent = agent
        self._launch = launch
        self._limit = limit
        self._on_cut_off = on_cut_off
        self._cost_before = 0.0

    async def take(self, prompt: Prompt, on_update: Callable[[TurnUpdate], None]) -> TurnAnswer | TurnQuestion:
        """Take a turn and return how it ended."""
        cost_usd = 0.0

        def handle(update: TurnUpdate) -> None:
            nonlocal cost_usd
            if isinstance(update, CostUpdate) and update.cost_usd > cost_usd:
                cost_usd = update.cost_usd
                self._record_cost(prompt, cost_usd)
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
                self._report_cut_off(cost_usd)
            raise
        except BaseException:
            self._report_cut_off(cost_usd)
            raise
        finally:
            self._end_metering(prompt, cost_usd)
        self._cost_before += end.cost_usd
        return end

    def _report_cut_off(self, cost_usd: float) -> None:
        if total := self._cost_before + cost_usd:
            self._on_cut_off(total)

    def _record_cost(self, prompt: Prompt, cost_usd: float) -> None:
        if self._launch.meter is not None and (total := self._cost_before + cost_usd):
            self._append({"type": "metered", "prompt": prompt.id, "costUsd": total})

    def _end_metering(self, prompt: Prompt, cost_usd: float) -> None:
        """Record the final cost, and log if it differs from the cost that the agent reports."""
        self._record_cost(prompt, cost_usd)
        meter = self._launch.meter
        if meter is not None and (difference := meter.end_turn(cost_usd)):
            _log.warning(difference, soldier=self._launch.soldier_id)
            self._append({"type": "noted", "text": difference})

    def _append(self, entry: dict[str, Any]) -> None:
        try:
            append_entry(self._launch.transcript, entry, durable=False, redaction=self._launch.redaction)
        except OSError as error:
            # The caller still reports the cost to the engine.
            _log.warning("a transcript cannot be written", soldier=self._launch.soldier_id, error=str(error))
