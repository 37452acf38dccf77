"""The lock of a store of files: one writer at a time, and nobody waits for one that is stopped."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kingdom.backends.files.lock import STOPPED_SECONDS, Lock, holders_of

HOLD_UNTIL_TOLD = """
import fcntl, sys
with open(sys.argv[1], "rb+") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""
# Time for a busy machine; what is measured is far below it.
PATIENCE_SECONDS = 20.0


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[Lock]:
    lock = Lock(str(tmp_path / "lock"))
    yield lock
    lock.close()


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", HOLD_UNTIL_TOLD, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_stopped_holder_is_killed_and_the_lock_taken(lock: Lock, tmp_path: Path) -> None:
    with holder(tmp_path / "lock") as process:
        process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with lock.held():
            assert STOPPED_SECONDS <= time.monotonic() - began < PATIENCE_SECONDS
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL


def test_a_holder_that_was_stopped_for_a_moment_lives_however_long_others_have_waited(
    lock: Lock, tmp_path: Path
) -> None:
    with holder(tmp_path / "lock") as process:
        assert process.stdin is not None
        # It is stopped at the moment when the others have waited for STOPPED_SECONDS.
        doings: list[tuple[float, Callable[[], object]]] = [
            (0.75 * STOPPED_SECONDS, lambda: process.send_signal(signal.SIGSTOP)),
            (1.25 * STOPPED_SECONDS, lambda: process.send_signal(signal.SIGCONT)),
            (1.25 * STOPPED_SECONDS, process.stdin.close),
        ]
        timers = [threading.Timer(*doing) for doing in doings]
        for timer in timers:
            timer.start()
        with lock.held():
            pass
        for timer in timers:
            timer.join()
        assert process.wait(PATIENCE_SECONDS) == 0


def test_who_holds_a_file_of_the_same_number_on_another_filesystem_is_no_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with holder(path) as process:
        mode, number, device, *rest = path.stat()
        assert holders_of(path.stat()) == [process.pid]
        assert holders_of(os.stat_result((mode, number, device + 1, *rest))) == []
