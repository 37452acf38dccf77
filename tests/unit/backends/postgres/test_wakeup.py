import asyncio
from datetime import timedelta

import pytest

from kingdom.backends.postgres.wakeup import PostgresWakeups
from tests.patience import PATIENCE_SECONDS

SOON, LONG = timedelta(milliseconds=20), timedelta(seconds=PATIENCE_SECONDS)


class Sender:
    """Records hints. Sending the first one takes until the test ends it."""

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.arrived: list[list[str]] = []
        self.under_way = asyncio.Event()
        self.go_on = asyncio.Event()

    async def send(self, streams: list[str]) -> None:
        self.sent.append(streams)
        self.under_way.set()
        await self.go_on.wait()
        self.arrived.append(streams)


async def test_hints_of_the_same_moment_are_sent_together() -> None:
    sender = Sender()
    sender.go_on.set()
    wakeups = PostgresWakeups("channel", sender.send, None)
    for stream in ("b", "a", "b"):
        wakeups.wake_workers([stream])
    await wakeups.close()
    assert sender.sent == [["a", "b"]]


async def test_a_hint_that_arrives_while_another_is_sent_is_sent_too() -> None:
    sender = Sender()
    wakeups = PostgresWakeups("channel", sender.send, None)
    wakeups.wake_workers(["a"])
    await sender.under_way.wait()
    # A burst becomes one hint.
    for _ in range(200):
        wakeups.wake_workers(["b"])
    wakeups.wake_workers(["a"])
    sender.go_on.set()
    await wakeups.close()
    assert sender.sent == [["a"], ["a", "b"]]


async def test_closing_does_not_wait_for_a_hint_that_cannot_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kingdom.backends.postgres.wakeup._LAST_HINT_SECONDS", 0.01)
    sender = Sender()
    wakeups = PostgresWakeups("channel", sender.send, None)
    wakeups.wake_workers(["a"])
    await sender.under_way.wait()
    wakeups.wake_workers(["b"])
    await asyncio.wait_for(wakeups.close(), PATIENCE_SECONDS)
    assert (sender.sent, sender.arrived) == ([["a"]], [])


async def test_a_hint_that_cannot_be_sent_does_no_harm() -> None:
    sent = list[list[str]]()

    async def send(streams: list[str]) -> None:
        sent.append(streams)
        raise ConnectionError("no way")

    wakeups = PostgresWakeups("channel", send, None)
    wakeups.wake_workers(["a"])
    await wakeups.close()
    wakeups.wake_workers(["b"])
    await wakeups.close()
    assert sent == [["a"], ["b"]]


async def test_waiters_of_this_process_are_woken_without_a_round_trip() -> None:
    sender = Sender()
    wakeups = PostgresWakeups("channel", sender.send, None)
    waiting = asyncio.create_task(wakeups.wait(["a", "b"], LONG))
    other = asyncio.create_task(wakeups.wait(["c"], LONG))
    await asyncio.sleep(0)
    wakeups.wake_workers(["b"])
    await asyncio.wait_for(waiting, LONG.total_seconds())
    assert not sender.arrived
    assert not other.done()
    other.cancel()
    sender.go_on.set()
    await wakeups.close()


async def test_a_hint_without_a_waiting_task_is_kept_for_the_next_one() -> None:
    sender = Sender()
    sender.go_on.set()
    wakeups = PostgresWakeups("channel", sender.send, None)
    wakeups.wake_workers(["a", "b"])
    await asyncio.wait_for(wakeups.wait(["a"], LONG), LONG.total_seconds() / 2)
    received = asyncio.create_task(wakeups.wait(["a"], LONG))
    await asyncio.wait_for(wakeups.wait(["b"], LONG), LONG.total_seconds() / 2)
    assert not received.done()
    received.cancel()
    await wakeups.close()


async def test_a_wait_without_a_hint_ends_by_itself() -> None:
    wakeups = PostgresWakeups("channel", Sender().send, None)
    await wakeups.wait(["a"], SOON)
    await wakeups.close()
