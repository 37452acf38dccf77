"""The meter of a session: limits, concurrent calls, and the cost that the agent reports."""

import asyncio
import logging

import pytest
from structlog.testing import capture_logs

from kingdom.log_output import configure_logs
from kingdom.soldiers.sandbox.meter import Meter, MeteredCall
from kingdom.soldiers.sandbox.prices import Tokens
from kingdom.soldiers.sandbox.vendors import Upstream, Vendor

UPSTREAM = Upstream(vendor=Vendor.ANTHROPIC, url="http://nowhere", key="none")
MODEL = "claude-opus-5-5"
# The highest usage of a call that costs at most two dollars.
MOST = Tokens(input=500_000)


def answer(input_tokens: int) -> bytes:
    usage = f'{{"input_tokens": {input_tokens}, "output_tokens": 0}}'
    return f'{{"type": "message", "model": "{MODEL}", "usage": {usage}}}'.encode()


async def asked(meter: Meter, model: str = MODEL) -> MeteredCall:
    call = await meter.admit(UPSTREAM, model, MOST)
    assert call is not None
    return call


async def costs(meter: Meter, input_tokens: int, model: str = MODEL) -> None:
    with await asked(meter, model) as call:
        call.feed(answer(input_tokens))


async def test_model_calls_between_turns_count_for_the_next_one() -> None:
    meter = Meter()
    meter.begin_turn(None)
    await costs(meter, 250_000)
    meter.end_turn(1.0)
    await costs(meter, 125_000)
    assert (meter.usd, meter.claimed_usd, meter.unclaimed_usd) == (1.5, 1.0, 0.5)


async def test_no_call_is_admitted_after_the_budget_is_spent_until_a_turn_has_more() -> None:
    meter = Meter()
    meter.begin_turn(1.0)
    await costs(meter, 500_000)
    assert await meter.admit(UPSTREAM, MODEL, MOST) is None
    meter.end_turn(meter.unclaimed_usd)
    assert await meter.admit(UPSTREAM, MODEL, MOST) is None
    meter.begin_turn(0.5)
    await costs(meter, 125_000)
    assert (meter.usd, meter.is_spent) == (2.5, True)


async def test_the_cost_before_a_turn_is_within_its_budget() -> None:
    meter = Meter()
    await costs(meter, 250_000)
    meter.begin_turn(1.0)
    assert await meter.admit(UPSTREAM, MODEL, MOST) is None


async def test_calls_that_might_exceed_the_budget_together_wait_for_each_other() -> None:
    meter = Meter()
    meter.begin_turn(1.0)
    first = await asked(meter)
    second, third = (asyncio.create_task(meter.admit(UPSTREAM, MODEL, MOST)) for _ in range(2))
    await asyncio.sleep(0)
    assert not second.done()
    with first:
        first.feed(answer(200_000))
    admitted = await second
    assert admitted is not None
    await asyncio.sleep(0)
    assert not third.done()
    with admitted:
        admitted.feed(answer(100_000))
    assert await third is None
    assert meter.usd == 1.2


async def test_calls_that_stay_within_the_budget_do_not_wait() -> None:
    meter = Meter()
    meter.begin_turn(5.0)
    calls = [await asyncio.wait_for(asked(meter), 1) for _ in range(3)]
    for call in calls:
        with call:
            call.feed(answer(1000))
    assert meter.usd == 0.012


async def test_a_call_without_an_answer_costs_its_prompt_and_a_refused_one_nothing() -> None:
    meter = Meter()
    with await asked(meter):
        pass
    assert meter.usd == 2.0
    with await asked(meter) as call:
        call.refuse()
        call.abandon()
    assert meter.usd == 2.0


START = b'data: {"type": "message_start", "message": {"usage": {"input_tokens": 250000, "output_tokens": 1}}}\n\n'
TEXT = b'data: {"type": "content_block_delta", "delta": {"text": "%s"}}\n\n'


@pytest.mark.parametrize(
    ("seconds", "came", "usd"),
    [
        # Each started second counts 200 tokens at $20 per million; an unreported prompt counts as it was sent.
        pytest.param(0.0, b"", 2.0 + 0.004, id="disconnected at once"),
        pytest.param(9.5, b"", 2.0 + 0.04, id="thoughts that are not shown"),
        pytest.param(9.5, START, 1.0 + 0.04, id="a prompt that the vendor reported"),
        pytest.param(9.5, START + TEXT % (b"x" * 10_000), 1.0 + 0.1, id="more text than the assumed speed"),
        pytest.param(1000.0, START, 1.0 + 1.28, id="the limit of the request"),
    ],
)
async def test_an_answer_that_is_cut_off_costs_what_the_model_may_have_written(
    seconds: float, came: bytes, usd: float
) -> None:
    now = 5000.0
    meter = Meter(clock=lambda: now)
    call = await meter.admit(UPSTREAM, MODEL, Tokens(input=500_000, output=64_000))
    assert call is not None
    # While a call waits to be admitted, the model writes nothing.
    now += 100
    with call:
        call.feed(came)
        now += seconds
    assert meter.usd == pytest.approx(usd, abs=1e-4)


@pytest.mark.parametrize(("came", "usd"), [(b"", 2.0 + 1.28), (START, 1.0 + 1.28), (answer(1000), 0.004)])
async def test_an_abandoned_answer_costs_the_maximum_unless_the_vendor_reported_its_usage(
    came: bytes, usd: float
) -> None:
    meter = Meter()
    call = await meter.admit(UPSTREAM, MODEL, Tokens(input=500_000, output=64_000))
    assert call is not None
    with call:
        call.feed(came)
        call.abandon()
    assert meter.usd == pytest.approx(usd)


async def test_calls_that_are_cut_off_at_once_spend_the_budget_too() -> None:
    meter = Meter()
    meter.begin_turn(1.0)
    asked_for = 0
    while call := await meter.admit(UPSTREAM, MODEL, Tokens(input=40, output=64_000)):
        with call:
            asked_for += 1
        assert asked_for < 1000
    assert meter.usd == pytest.approx(1.0, abs=0.01)


async def test_a_reported_cost_that_differs_causes_one_warning() -> None:
    meter = Meter()
    reported = []
    for _ in range(3):
        meter.begin_turn(None)
        await costs(meter, 250_000)
        meter.reported_usd += 0.1
        reported.append(meter.end_turn(meter.unclaimed_usd))
    first, *others = reported
    assert first is not None
    assert "$0.10" in first
    assert "$1.00" in first
    assert others == [None, None]


@pytest.mark.parametrize("reported", [0.0, 0.96, 1.0, 1.04])
async def test_a_reported_cost_close_to_the_metered_one_or_missing_causes_no_warning(reported: float) -> None:
    meter = Meter()
    meter.begin_turn(None)
    await costs(meter, 250_000)
    meter.reported_usd += reported
    assert meter.end_turn(meter.unclaimed_usd) is None


async def test_a_model_without_a_price_is_logged_once() -> None:
    configure_logs(json=True, level=logging.WARNING)
    try:
        with capture_logs() as logs:
            meter = Meter()
            for _ in range(2):
                with await asked(meter, "unheard-of") as call:
                    call.feed(b'{"usage": {"input_tokens": 1000000, "output_tokens": 0}}')
    finally:
        configure_logs(json=True, level=logging.ERROR)
    assert meter.usd == 30.0
    assert [line["model"] for line in logs if line["log_level"] == "warning"] == ["unheard-of"]
