"""Attempts to spend money uncounted, or beyond the budget."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import aiohttp

from kingdom.soldiers.agents.port import Agent, Prompt, TurnAnswer, TurnUpdate
from kingdom.soldiers.sandbox import request_forwarder
from kingdom.soldiers.sandbox.meter import Meter
from kingdom.soldiers.turns.turn import take_turn
from tests.fakes.model.stub import ModelStub
from tests.integration.soldiers.test_metering import APIS, MeteredAgent, behind_the_proxy
from tests.patience import PATIENCE_SECONDS
from tests.redteam.defended import AttemptClass, Ground

SPENDING = AttemptClass("spending")
_CENT = 0.01
_METER = "the meter in the model proxy reads the answers of the vendor"


@SPENDING.stopped_by(
    _METER,
    {f"{name}, {how}": (name, how == "in pieces") for name in APIS for how in ("whole", "in pieces")},
    quick=True,
)
async def ask_a_model_and_report_nothing(ground: Ground, case: tuple[str, bool]) -> str:
    _forget_costs(ground)
    name, stream = case

    async def spend(agent: MeteredAgent, _: ModelStub) -> None:
        await agent.ask(APIS[name], {"cost": 0.25}, {"answer": "so"}, stream=stream)

    return await _unmetered(ground, spend)


@SPENDING.stopped_by(_METER, {"an expensive one": "claude-opus-5-5", "an unknown one": "claude-secret-9"})
async def ask_another_model(ground: Ground, model: str) -> str:
    _forget_costs(ground)

    async def spend(agent: MeteredAgent, _: ModelStub) -> None:
        await agent.ask(APIS["anthropic"], {"usage": {"input_tokens": 100_000}}, {"answer": "so"}, model=model)

    return await _unmetered(ground, spend)


@SPENDING.stopped_by(_METER)
async def ask_between_turns(ground: Ground) -> str:
    _forget_costs(ground)

    async def spend(agent: MeteredAgent, _: ModelStub) -> None:
        agent.meter.begin_turn(1.0)
        agent.meter.end_turn(0.0)
        await agent.ask(APIS["chat"], {"cost": 0.25}, {"answer": "so"})

    return await _unmetered(ground, spend)


@SPENDING.stopped_by("a request is charged even if the agent disconnects")
async def disconnect_before_the_answer(ground: Ground) -> str:
    _forget_costs(ground)
    async with ModelStub() as model, behind_the_proxy(ground.folder, model) as agent:
        asking = asyncio.create_task(agent.ask(APIS["chat"], {"hang": True}))
        await asyncio.wait_for(model.silent.wait(), PATIENCE_SECONDS)
        asking.cancel()
    # The proxy continues without the agent; when it closes, it charges the highest possible cost.
    return "" if agent.meter.usd else "nothing was charged"


@SPENDING.stopped_by("an interrupted stream is charged for what has arrived")
async def break_off_a_stream(ground: Ground) -> str:
    _forget_costs(ground)

    async def spend(agent: MeteredAgent, _: ModelStub) -> None:
        with suppress(aiohttp.ClientError):
            await agent.ask(APIS["anthropic"], {"cost": 0.5}, {"drop_stream": True}, stream=True)

    return await _unmetered(ground, spend)


@SPENDING.stopped_by("background answers are refused")
async def request_a_background_answer(ground: Ground) -> str:
    if not ground.is_defended:
        look = request_forwarder._check_body
        ground.remove(
            request_forwarder, "_check_body", lambda body, path: look(body.replace(b'"background"', b'"behind"'), path)
        )
    async with ModelStub() as model, behind_the_proxy(ground.folder, model) as agent:
        status, _ = await agent.ask(APIS["responses"], {"cost": 5}, background=True)
        return f"answered with {status}" if model.asked else ""


@SPENDING.stopped_by("streams are requested with their usage, whatever the agent wants")
async def ask_for_a_stream_without_its_usage(ground: Ground) -> str:
    ground.remove(request_forwarder, "with_usage_reporting", lambda _, document: document)
    async with ModelStub() as model, behind_the_proxy(ground.folder, model) as agent:
        options = {"include_usage": False}
        await agent.ask(APIS["chat"], {"cost": 0.25}, {"answer": "so"}, stream=True, stream_options=options)
        return (
            "" if model.asked[0].body["stream_options"]["include_usage"] else "the vendor was asked to omit the usage"
        )


@SPENDING.stopped_by("the model proxy refuses once the budget is spent", {name: name for name in APIS})
async def go_on_beyond_the_budget(ground: Ground, name: str) -> str:
    ground.remove(Meter, "is_spent", False)
    return await _beyond(ground, name, at_once=1)


@SPENDING.stopped_by("calls that might exceed the budget together wait for each other", {name: name for name in APIS})
async def ask_all_at_once_before_anything_is_charged(ground: Ground, name: str) -> str:
    ground.remove(Meter, "_might_exceed_limit", lambda _: False)
    return await _beyond(ground, name, at_once=12)


@SPENDING.stopped_by(
    "the meter counts; the cost that the agent reports is only compared", {"less": 0.01, "more": 1000.0}
)
async def report_a_wrong_cost(ground: Ground, claimed_usd: float) -> str:
    async with ModelStub() as model, behind_the_proxy(ground.folder, model) as asking:
        meter = asking.meter if ground.is_defended else None
        asking.meter.begin_turn(1.0)
        limit = timedelta(seconds=PATIENCE_SECONDS)
        end = await take_turn(
            _Liar(asking, claimed_usd), Prompt(id="p1", text="work"), limit, lambda _: None, meter=meter
        )
        return "" if abs(end.cost_usd - model.charged_usd) < _CENT else f"${end.cost_usd} of ${model.charged_usd}"


class _Liar(Agent):
    """An agent that calls its model and reports another cost."""

    def __init__(self, asking: MeteredAgent, claimed_usd: float) -> None:
        self.session, self.pid = "liar", None
        self._asking, self._said = asking, claimed_usd

    async def send(self, prompt: Prompt) -> AsyncGenerator[TurnUpdate, None]:
        await self._asking.ask(APIS["anthropic"], {"cost": 0.25}, {"answer": prompt.text})
        yield TurnAnswer("done", self._said)

    async def interrupt(self) -> None: ...

    async def stop(self, grace: timedelta) -> None: ...

    async def wait_for_end(self) -> str:
        return ""


async def _unmetered(ground: Ground, spend: Any) -> str:
    """Return the charges of the vendor that were not counted."""
    async with ModelStub() as model, behind_the_proxy(ground.folder, model) as agent:
        await spend(agent, model)
        missing = model.charged_usd - agent.meter.usd
        return f"${missing:.2f} were not counted" if missing >= _CENT else ""


async def _beyond(ground: Ground, name: str, *, at_once: int) -> str:
    """Return whether more than one answer exceeded a budget of one dollar."""
    async with ModelStub() as model, behind_the_proxy(ground.folder, model) as agent:
        agent.meter.begin_turn(1.0)
        for _ in range(12 // at_once):
            asked = [agent.ask(APIS[name], {"cost": 0.3}, {"answer": "so"}, stream=True) for _ in range(at_once)]
            await asyncio.wait_for(asyncio.gather(*asked), PATIENCE_SECONDS)
        return f"${model.charged_usd:.2f} of $1.00" if model.charged_usd > 1.2 + _CENT else ""


def _forget_costs(ground: Ground) -> None:
    ground.remove(Meter, "charge", lambda *_: None)
