"""Hints to the tasks of a process."""

import asyncio
import time
from datetime import timedelta

import pytest

from kingdom.backends.hints import Hints
from tests.patience import PATIENCE_SECONDS

HOUR = timedelta(hours=1)


async def test_a_hint_that_arrives_with_a_cancellation_is_kept() -> None:
    hints = Hints()
    waiting = asyncio.create_task(hints.wait(["jobs"], HOUR))
    await asyncio.sleep(0)
    assert hints.without_waiter(["jobs"]) == set()
    hints.notify(["jobs"])
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await hints.wait(["jobs"], HOUR)


async def test_a_cancellation_without_a_hint_leaves_none() -> None:
    hints = Hints()
    waiting = asyncio.create_task(hints.wait(["jobs"], HOUR))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    again = asyncio.create_task(hints.wait(["jobs"], HOUR))
    await asyncio.sleep(0)
    assert not again.done()
    hints.notify(["jobs"])
    await asyncio.wait_for(again, PATIENCE_SECONDS)


async def test_a_stream_has_no_listener_unless_a_task_waits_for_it_or_waited_a_moment_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hints = Hints()
    assert hints.without_waiter(["jobs"]) == {"jobs"}
    await hints.wait(["jobs"], timedelta(0))
    assert hints.without_waiter(["jobs", "others"]) == {"others"}
    later = time.monotonic() + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert hints.without_waiter(["jobs"]) == {"jobs"}
