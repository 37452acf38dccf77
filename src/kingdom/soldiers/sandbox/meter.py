"""What the answers of a model cost one soldier, counted where they pass; no word of the agent has a say in it."""

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

_TOLERATED_USD = 0.01
_TOLERATED_SHARE = 0.05
_MODEL_NAME_MAX = 200
# Models that write faster are cheap ones.
_TOKENS_PER_SECOND = 200
_log = structlog.get_logger("kingdom.soldiers.gate")


class Meter:
    """Counts what a session has cost, in turns and between them, and keeps it within what it may cost.

    `usd` is all of it, `claimed_usd` what turns have told of it, `reported_usd` what the agent says. `charged` is set
    whenever something was charged, and `is_idle` while no turn is under way.
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
        self._ended = asyncio.Event()
        self._warned_about: set[str] = set()

    @property
    def unclaimed_usd(self) -> float:
        """Return what no turn has told yet."""
        return round(self.usd - self.claimed_usd, USD_DIGITS)

    @property
    def is_spent(self) -> bool:
        """Return whether the session has cost what it may."""
        return self._limit_usd is not None and round(self.usd - self._limit_usd, USD_DIGITS) >= 0

    def begin_turn(self, budget_usd: float | None) -> None:
        """Let a turn cost so much, with what nobody has told of before it."""
        self._limit_usd = None if budget_usd is None else self.claimed_usd + budget_usd
        self.is_idle.clear()
        self._ended.set()

    def end_turn(self, claimed_usd: float) -> str | None:
        """Take in what a turn tells that it has cost; return once that the agent reports something else."""
        self.claimed_usd = round(self.claimed_usd + claimed_usd, USD_DIGITS)
        self.is_idle.set()
        apart = abs(self.reported_usd - self.usd)
        # An agent that reports nothing has said nothing wrong.
        if (
            not self.reported_usd
            or apart <= _TOLERATED_USD
            or apart <= self.usd * _TOLERATED_SHARE
            or "difference" in self._warned_about
        ):
            return None
        self._warned_about.add("difference")
        return (
            f"the agent reports that its session has cost ${self.reported_usd:.2f}, and the vendor's answers say"
            f" ${self.usd:.2f}, which counts: if the agent is right, set soldiers.model.prices"
        )

    async def admit(self, upstream: Upstream, model: str, maximum: Tokens) -> "MeteredCall | None":
        """Let a model be asked, which uses up so much at maximum; return None where the session has cost what it may.

        Calls that together might go beyond the limit wait for one another, so that only one answer can.
        """
        call = MeteredCall(self, upstream, model, maximum)
        while not self.is_spent and self._might_exceed_limit():
            self._ended.clear()
            await self._ended.wait()
        if self.is_spent:
            return None
        self._open_calls.add(call)
        return call

    def charge(self, usd: float) -> None:
        """Count something that the vendor charges."""
        self.usd = round(self.usd + usd, USD_DIGITS)
        self.charged.set()
        if self.is_idle.is_set():
            _log.info("a model was asked between turns", usd=usd, session_usd=self.usd)

    def price(self, upstream: Upstream, tokens: Tokens, *models: str) -> float:
        """Return what tokens cost of the first of these models that has a price."""
        named = [model for model in models if model]
        billed = upstream.bill(tokens, *named)
        model = named[0][:_MODEL_NAME_MAX] if named else ""
        if billed.is_guess and model not in self._warned_about:
            self._warned_about.add(model)
            _log.warning(
                "the price of a model is not known, so it counts as the dearest: set soldiers.model.prices",
                model=model,
                vendor=upstream.vendor,
            )
        return billed.usd

    def end(self, call: "MeteredCall") -> None:
        """Take in that a call has come to its end."""
        self._open_calls.discard(call)
        self._ended.set()

    def _might_exceed_limit(self) -> bool:
        if self._limit_usd is None or not self._open_calls:
            return False
        return self.usd + sum(call.max_usd for call in self._open_calls) >= self._limit_usd


class MeteredCall:
    """One question to a model: what its answer costs is charged as soon as the vendor has told, or at the end.

    An answer that ended before the vendor told all of it is charged with the prompt and with what the model may have
    written since it was asked, also what it thought without showing it, but not with more than the question allows.
    """

    def __init__(self, meter: Meter, upstream: Upstream, model: str, maximum: Tokens) -> None:
        self._meter = meter
        self._upstream = upstream
        self._model = model
        self._maximum = maximum
        self._reader = UsageReader(upstream.vendor)
        self._is_settled = False
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
        """Take in that there is no answer, and so nothing to pay."""
        self._is_settled = True

    def feed(self, chunk: bytes) -> None:
        """Take in the next piece of the answer."""
        self._reader.feed(chunk)
        if self._reader.is_final:
            self._charge(self._reader.tokens)

    def finish(self) -> None:
        """Take in that nothing more comes, and that the vendor writes nothing more."""
        begun_seconds = int(self._meter.clock() - self._begun_at) + 1
        self._settle(begun_seconds * _TOKENS_PER_SECOND)

    def abandon(self) -> None:
        """Take in that nothing more is read of an answer that the vendor writes to its end."""
        self._settle(self._maximum.output)

    def _settle(self, written: int) -> None:
        """Charge once what the vendor has told, or else that the model has written so many tokens."""
        if self._is_settled:
            return
        self._is_settled = True
        self._reader.close()
        tokens = self._reader.tokens
        if not self._reader.is_final:
            tokens = replace(
                tokens,
                # The vendor has read the prompt, whether or not it said how long that was.
                input=tokens.input if tokens.prompt else self._maximum.input,
                output=max(tokens.output, min(written, self._maximum.output)),
            )
        self._charge(tokens)

    def _charge(self, tokens: Tokens) -> None:
        usd = self._meter.price(self._upstream, tokens, self._reader.model, self._model)
        if usd > self._usd:
            more, self._usd = usd - self._usd, usd
            self._meter.charge(more)
