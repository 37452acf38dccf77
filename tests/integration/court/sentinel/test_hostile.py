"""Hostile inputs of every class: none is trusted, none crashes the Sentinel, and genuine events are received."""

import pytest

from bench.hostile.attack import KINDS, Trusting, attack
from bench.hostile.inputs import inputs
from kingdom.court import streams
from tests.contract.backends import BackendUnderTest

COUNT = 600


@pytest.mark.both_stores
async def test_nothing_is_trusted_and_nothing_stops_the_receiver(backend: BackendUnderTest) -> None:
    async with backend.open(streams.TOPOLOGY, KINDS) as bus:
        outcome = await attack(bus, COUNT, seed=7)
    assert outcome.breaches == []
    assert outcome.sent.total() == COUNT + 1
    # Every class of inputs must have been sent.
    prefixes = {kind.partition(":")[0] for kind in outcome.sent}
    assert prefixes >= {"signature", "body", "text", "id", "content type", "framing", "replay", "stalled", "genuine"}
    assert not any(status >= 500 for status in outcome.answers)


async def test_a_receiver_that_believes_every_signature_is_caught(backend: BackendUnderTest) -> None:
    async with backend.open(streams.TOPOLOGY, KINDS) as bus:
        outcome = await attack(bus, 120, seed=7, kind=Trusting)
    assert any("was received" in words for words in outcome.breaches)


def test_a_seed_gives_the_same_inputs_again() -> None:
    assert list(inputs(200, seed=3)) == list(inputs(200, seed=3))
    assert list(inputs(200, seed=3)) != list(inputs(200, seed=4))
