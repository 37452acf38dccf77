"""The thread that waits for the disk."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from kingdom.backends.files.system.thread import DiskThread
from kingdom.errors import Unavailable
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
def thread() -> Iterator[DiskThread]:
    thread = DiskThread("test")
    yield thread
    thread.stop()


async def test_calls_run_in_one_other_thread_in_their_order(thread: DiskThread) -> None:
    done: list[tuple[int, str]] = []
    await asyncio.gather(*(thread.run(lambda n=n: done.append((n, threading.current_thread().name))) for n in range(9)))  # type: ignore[misc]
    assert done == [(number, "test_0") for number in range(9)]


async def test_the_result_or_the_error_of_a_call_reaches_its_caller(thread: DiskThread) -> None:
    assert await thread.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 // 0)
    assert await thread.run(lambda: 8) == 8


async def test_a_cancelled_caller_waits_until_its_call_has_ended(thread: DiskThread) -> None:
    begun, let_go, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        assert let_go.wait(PATIENCE_SECONDS)
        ended.set()

    caller = asyncio.create_task(thread.run(call))
    assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
    caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()


async def test_a_stopped_thread_runs_earlier_calls_and_refuses_later_ones(thread: DiskThread) -> None:
    asked = asyncio.create_task(thread.run(lambda: 7))
    await asyncio.sleep(0)
    thread.stop()
    assert await asked == 7
    with pytest.raises(Unavailable, match="closed"):
        await thread.run(lambda: 8)


def test_a_process_that_never_stops_its_thread_still_ends() -> None:
    script = (
        "import asyncio; from kingdom.backends.files.system.thread import DiskThread;"
        "print(asyncio.run(DiskThread('left').run(lambda: 7)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "7\n"
