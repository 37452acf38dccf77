"""Count the cost of an agent's model calls, from the answers of the vendor and not from the reports of the agent."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self

import structlog

from kingdom.soldiers.sandbox.prices import USD_DIGITS, Tokens
from kingdom.soldiers.sandbox.usage import UsageReader
from kingdom.soldiers.sandbox.vendors import Upstream

# The agent's own figure may differ from the measured cost by one of these without a warning.
_TOLERATED_USD = 0.01
_TOLERATED_SHARE = 0.05
_MODEL_NAME_LENGTH_MAX = 200
# The assumed speed of a model. Some models are faster, but they are cheap.
_TOKENS_PER_SECOND = 200
_log = structlog.get_logger("kingdom.soldiers.model_proxy")


class Meter:
    """Counts the cost of a session, in turns and between them, and keeps it within its budget.

    `usd` is the total, and `claimed_usd` the part of it that is already in the result of a turn. `reported_usd` is the
    total according to the agent. `charged` is set whenever a cost is added, and `is_idle` while no turn runs.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.usd = 0.0
        self.claimed_usd = 0.0
        self.reported_usd = 0.0
        self.charged = asyncio.Event()
        self.is_idle = asyncio.Event()
        self.is_idle.set()
        self._limit_usd: float | None = None
        self._open_calls: set[MeteredCall] = set()
        self._call_ended = asyncio.Event()
        self._warned_about: set[str] = set()

    @property
    def unclaimed_usd(self) -> float:
        """Return the cost that is not yet in the result of a turn."""
        return round(self.usd - self.claimed_usd, USD_DIGITS)

    @property
    def is_spent(self) -> bool:
        """Return whether the budget is spent."""
        return self._limit_usd is not None and round(self.usd - self._limit_usd, USD_DIGITS) >= 0

    def begin_turn(self, budget_usd: float | None) -> None:
        """Begin a turn with a budget. The budget also covers the unclaimed cost."""
        self._limit_usd = None if budget_usd is None else self.claimed_usd + budget_usd
        self.is_idle.clear()
        # Wake waiting calls, because the budget has changed.
        self._call_ended.set()

    def end_turn(self, claimed_usd: float) -> str | None:
        """End a turn whose result has this cost. Return a warning, once, if the agent reports another total."""
        self.claimed_usd = round(self.claimed_usd + claimed_usd, USD_DIGITS)
        self.is_idle.set()
        difference = abs(self.reported_usd - self.usd)
        # Some agents report no cost.
        if (
            not self.reported_usd
            or difference <= _TOLERATED_USD
            or difference <= self.usd * _TOLERATED_SHARE
            or "difference" in self._warned_about
        ):
            return None
        self._warned_about.add("difference")
        return (
            f"the agent reports that its session has cost ${self.reported_usd:.2f}, but the vendor's answers say"
            f" ${self.usd:.2f}, and Kingdom uses that: if the agent is right, set soldiers.model.prices"
        )

    async def admit(self, upstream: Upstream, model: str, maximum: Tokens) -> "MeteredCall | None":
        """Admit a call that uses at most `maximum` tokens; return None if the budget is spent.

        Calls that together might exceed the limit wait for each other, so at most one answer can exceed the limit.
        """
        call = MeteredCall(self, upstream, model, maximum)
        while not self.is_spent and self._might_exceed_limit():
            self._call_ended.clear()
            await self._call_ended.wait()
        if self.is_spent:
            return None
        self._open_calls.add(call)
        return call

    def charge(self, usd: float) -> None:
        """Add a cost."""
        self.usd = round(self.usd + usd, USD_DIGITS)
        self.charged.set()
        if self.is_idle.is_set():
            _log.info("a model was asked between turns", usd=usd, session_usd=self.usd)

    def price(self, upstream: Upstream, tokens: Tokens, *models: str) -> float:
        """Return the cost of tokens, at the price of the first model whose price is known."""
        named = [model for model in models if model]
        billed = upstream.bill(tokens, *named)
        model = named[0][:_MODEL_NAME_LENGTH_MAX] if named else ""
        if billed.is_guess and model not in self._warned_about:
            self._warned_about.add(model)
            _log.warning(
                "the price of a model is unknown, so the highest known price counts: set soldiers.model.prices",
                model=model,
                vendor=upstream.vendor,
            )
        return billed.usd

    def end(self, call: "MeteredCall") -> None:
        """Remove a call that has ended."""
        self._open_calls.discard(call)
        self._call_ended.set()

    def _might_exceed_limit(self) -> bool:
        if self._limit_usd is None or not self._open_calls:
            return False
        return self.usd + sum(call.max_usd for call in self._open_calls) >= self._limit_usd


class MeteredCall:
    """One call of a model, charged as soon as the vendor reports the usage, or at the end.

    If an answer ends before the vendor reports its usage, the charge covers the prompt and the tokens that the model
    may have written since the call began, including hidden reasoning, up to the limit of the request.
    """

    def __init__(self, meter: Meter, upstream: Upstream, model: str, maximum: Tokens) -> None:
        self._meter = meter
        self._upstream = upstream
        self._model = model
        self._maximum = maximum
        self._reader = UsageReader(upstream.vendor)
        self._has_ended = False
        self._usd = 0.0
        self._begun_at = meter.clock()
        self.max_usd = meter.price(upstream, maximum, model)

    def __enter__(self) -> Self:
        self._begun_at = self._meter.clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish()
        self._meter.end(self)

    def refuse(self) -> None:
        """End the call without a charge, because there is no answer."""
        self._has_ended = True

    def feed(self, chunk: bytes) -> None:
        """Read the next piece of the answer."""
        self._reader.feed(chunk)
        if self._reader.is_final:
            self._charge(self._reader.tokens)

    def finish(self) -> None:
        """End the call after its answer has ended, and charge it."""
        started_seconds = int(self._meter.clock() - self._begun_at) + 1
        self._end(started_seconds * _TOKENS_PER_SECOND)

    def abandon(self) -> None:
        """End the call before its answer has ended. The vendor completes the answer, so its longest form is charged."""
        self._end(self._maximum.output)

    def _end(self, written: int) -> None:
        """Charge the usage that the vendor reported, or else an estimate of `written` output tokens; only once."""
        if self._has_ended:
            return
        self._has_ended = True
        self._reader.close()
        tokens = self._reader.tokens
        if not self._reader.is_final:
            tokens = replace(
                tokens,
                # The vendor charges for the prompt even if it has not reported the length of the prompt.
                input=tokens.input if tokens.prompt else self._maximum.input,
                output=max(tokens.output, min(written, self._maximum.output)),
            )
        self._charge(tokens)

    def _charge(self, tokens: Tokens) -> None:
        usd = self._meter.price(self._upstream, tokens, self._reader.model, self._model)
        if usd > self._usd:
            more, self._usd = usd - self._usd, usd
            self._meter.charge(more)
