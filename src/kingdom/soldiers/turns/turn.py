"""One turn of an agent, within limits of time and money, and without loops."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta

import msgspec

from kingdom.soldiers.agents.limits import AgentLoops, LoopAdvice, LoopDetector
from kingdom.soldiers.agents.port import (
    Agent,
    AgentFailed,
    AgentGone,
    BudgetSpent,
    CostUpdate,
    Prompt,
    ToolUse,
    TurnAnswer,
    TurnFailed,
    TurnQuestion,
    TurnTooLong,
    TurnUpdate,
)
from kingdom.soldiers.sandbox.meter import Meter

# An agent that sends no update for this long counts as hanging.
IDLE_LIMIT = timedelta(minutes=10)
# How long an interrupted turn may take to report its cost.
_INTERRUPT_SECONDS = 10
_USD_DIGITS = 6


async def take_turn(
    agent: Agent,
    prompt: Prompt,
    limit: timedelta,
    on_update: Callable[[TurnUpdate], None],
    *,
    idle_limit: timedelta = IDLE_LIMIT,
    meter: Meter | None = None,
) -> TurnAnswer | TurnQuestion:
    """Take a turn and return how it ended; its updates go to `on_update`, and every failure carries the cost so far.

    A turn that takes too long fails with TurnTooLong; a turn that costs too much fails with BudgetSpent. An agent that
    repeats the same tool call is interrupted and asked once to stop; if it repeats itself again, the turn fails with
    AgentLoops. If there is a `meter`, its count is the cost, whatever the agent reports.
    """
    turn = _LimitedTurn(agent, limit, on_update, idle_limit, prompt.budget_usd, meter)
    try:
        while (end := await turn.send_prompt(prompt)) is None:
            prompt = replace(prompt, text=turn.loop_detector.nudge, continues=True, reply="", budget_usd=turn.left_usd)
    finally:
        if meter is not None:
            meter.reported_usd += turn.reported_usd
    return end


class _LimitedTurn:
    """Counts time, money and repetitions over all prompts of a turn.

    `reported_usd` is the cost that the agent reports, `_cost_before` the part of it from earlier prompts of the turn.
    """

    def __init__(
        self,
        agent: Agent,
        limit: timedelta,
        on_update: Callable[[TurnUpdate], None],
        idle_limit: timedelta,
        budget_usd: float | None,
        meter: Meter | None,
    ) -> None:
        self.loop_detector = LoopDetector()
        self._agent = agent
        self._on_update = on_update
        self._limit, self._idle_limit = limit, idle_limit
        self._loop = asyncio.get_running_loop()
        self._end_time = self._loop.time() + limit.total_seconds()
        self._budget_usd = budget_usd
        self._meter = meter
        self._cost_before = 0.0
        self.reported_usd = 0.0

    @property
    def cost_usd(self) -> float:
        """Return the cost of the turn so far."""
        return self.reported_usd if self._meter is None else self._meter.unclaimed_usd

    @property
    def left_usd(self) -> float | None:
        """Return the rest of the turn's budget."""
        return None if self._budget_usd is None else max(round(self._budget_usd - self.cost_usd, _USD_DIGITS), 0.0)

    async def send_prompt(self, prompt: Prompt) -> TurnAnswer | TurnQuestion | None:
        """Send a prompt and return how the turn ended, or None if the agent must be told to stop repeating itself."""
        if self._meter is not None:
            # The meter enforces the budget, so the agent gets none.
            prompt = replace(prompt, budget_usd=None)
        try:
            async with aclosing(_UpdateReader(self._agent.send(prompt), self._meter)) as updates:
                return await self._read_updates(updates)
        except TurnFailed as failure:
            self._count(failure.cost_usd)
            # The proxy refuses calls beyond the budget. The agent reports this in its own words, which are replaced.
            is_refused = isinstance(failure, AgentFailed) and self._meter is not None and self._meter.is_spent
            error = self._budget_error() if is_refused else failure
            error.cost_usd = self.cost_usd
            raise error from None

    async def _read_updates(self, updates: "_UpdateReader") -> TurnAnswer | TurnQuestion | None:
        while True:
            timeout = asyncio.timeout_at(self._deadline())
            try:
                async with timeout:
                    update = await updates.next()
            except TimeoutError:
                if not timeout.expired():
                    raise
                return await self._end_too_long(updates)
            if update is None:
                raise AgentFailed("the agent ended its turn without an answer")
            if isinstance(update, TurnAnswer | TurnQuestion):
                return self._with_cost(update)
            self._handle(update)
            if isinstance(update, CostUpdate) and self.left_usd == 0:
                return await self._end_over_budget(updates)
            if isinstance(update, ToolUse):
                advice = self.loop_detector.record_call(update.tool, update.detail)
                if advice is not LoopAdvice.CONTINUE:
                    return await self._end_loop(updates, advice)

    async def _end_too_long(self, updates: "_UpdateReader") -> TurnAnswer | TurnQuestion:
        why = self._describe_time_limit()
        if end := await self._interrupt(updates):
            return end
        raise TurnTooLong(why)

    async def _end_over_budget(self, updates: "_UpdateReader") -> TurnAnswer | TurnQuestion:
        if end := await self._interrupt(updates):
            return end
        raise self._budget_error()

    def _budget_error(self) -> BudgetSpent:
        return BudgetSpent(f"the turn has cost ${self.cost_usd:.4g}, and ${self._budget_usd:.4g} were left for it")

    async def _end_loop(self, updates: "_UpdateReader", advice: LoopAdvice) -> TurnAnswer | TurnQuestion | None:
        end = await self._interrupt(updates)
        if end is None and advice is LoopAdvice.GIVE_UP:
            raise AgentLoops(f"the agent {self.loop_detector.description}")
        self._cost_before = self.reported_usd
        return end

    async def _interrupt(self, updates: "_UpdateReader") -> TurnAnswer | TurnQuestion | None:
        """Interrupt a turn and wait for its final cost; return its end if it ended normally in the meantime."""
        try:
            async with asyncio.timeout(_INTERRUPT_SECONDS):
                await self._agent.interrupt()
                while update := await updates.next():
                    if isinstance(update, TurnAnswer | TurnQuestion):
                        return self._with_cost(update)
                    self._handle(update)
        except AgentGone:
            raise
        except TurnFailed as failure:
            self._count(failure.cost_usd)
        except TimeoutError:
            pass
        return None

    def _handle(self, update: TurnUpdate) -> None:
        if isinstance(update, CostUpdate):
            self._count(update.cost_usd)
            update = CostUpdate(self.cost_usd)
        self._on_update(update)

    def _count(self, cost_usd: float) -> None:
        """Add the cost that the agent reports for the current prompt so far."""
        self.reported_usd = max(self.reported_usd, self._cost_before + cost_usd)

    def _with_cost(self, end: TurnAnswer | TurnQuestion) -> TurnAnswer | TurnQuestion:
        self._count(end.cost_usd)
        return msgspec.structs.replace(end, cost_usd=self.cost_usd)

    def _deadline(self) -> float:
        return min(self._end_time, self._loop.time() + self._idle_limit.total_seconds())

    def _describe_time_limit(self) -> str:
        if self._loop.time() < self._end_time:
            return f"no sign of life for {self._idle_limit.total_seconds():g} s"
        return f"no answer within {self._limit.total_seconds():g} s: give the task more time, or a smaller query"


class _UpdateReader:
    """Reads the updates of a prompt. If a read times out, no update is lost: the next read returns it.

    A charge on the meter counts as an update too.
    """

    def __init__(self, updates: AsyncGenerator[TurnUpdate, None], meter: Meter | None) -> None:
        self._updates = updates
        self._meter = meter
        self._pending_read: asyncio.Task[TurnUpdate | None] | None = None
        self._charge = asyncio.create_task(meter.charged.wait()) if meter else None

    async def next(self) -> TurnUpdate | None:
        """Return the next update, or None at the end."""
        # The generator is read in its own task, because a timeout inside the generator would end the generator.
        pending = self._pending_read = self._pending_read or asyncio.create_task(self._read())
        await asyncio.wait([pending, *filter(None, [self._charge])], return_when=asyncio.FIRST_COMPLETED)
        if not pending.done() and self._meter is not None:
            self._meter.charged.clear()
            self._charge = asyncio.create_task(self._meter.charged.wait())
            return CostUpdate(0.0)
        self._pending_read = None
        return pending.result()

    async def aclose(self) -> None:
        """Interrupt the turn, unless it has ended."""
        if self._charge:
            self._charge.cancel()
        if self._pending_read:
            self._pending_read.cancel()
            await asyncio.gather(self._pending_read, return_exceptions=True)
        await self._updates.aclose()

    async def _read(self) -> TurnUpdate | None:
        return await anext(self._updates, None)
