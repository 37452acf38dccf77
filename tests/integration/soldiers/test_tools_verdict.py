"""An agent that waits for a verdict gets the one that the court stores."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from kingdom.bootstrap import open_bus
from kingdom.bus.port import Bus
from kingdom.soldiers.agent_tools.host_tools import HostTools
from kingdom.soldiers.agent_tools.verdict import await_verdict
from kingdom.workflow.reactions import engine
from kingdom.workflow.verdicts import PetitionVerdict, save_verdict
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    application = engine()
    async with open_bus(f"file:{tmp_path}/realm", application.topology, application.kinds) as bus:
        yield bus


async def test_a_petition_is_answered_with_what_is_decided_while_the_agent_waits(bus: Bus, tmp_path: Path) -> None:
    asked = asyncio.Event()
    patience = timedelta(seconds=PATIENCE_SECONDS)
    tools = HostTools(tmp_path, partial(await_verdict, bus), verdict_limit=patience)
    tools.begin("w1-t1#2", lambda *_: asked.set())
    waiting = asyncio.create_task(tools.call("petition", {"kind": "github.comment", "body": {"body": "hi"}}))
    await asyncio.wait_for(asked.wait(), PATIENCE_SECONDS)
    async with bus.transaction() as transaction:
        await save_verdict(transaction, "w1-t1-a2-p1", PetitionVerdict(granted=False, reason="three are the limit"))
    reply = await waiting
    assert reply.is_error
    assert "three are the limit" in reply.text


async def test_a_petition_that_a_person_has_to_approve_lets_the_agent_continue(bus: Bus, tmp_path: Path) -> None:
    async with bus.transaction() as transaction:
        await save_verdict(
            transaction, "w1-t1-a1-p1", PetitionVerdict(granted=None, reason="a person has to approve it")
        )
    tools = HostTools(tmp_path, partial(await_verdict, bus))
    tools.begin("w1-t1#1", lambda *_: None)
    reply = await tools.call("petition", {"kind": "github.comment", "body": {"body": "hi"}})
    assert not reply.is_error
    assert "a person has to approve it" in reply.text
