"""Fork the processes of a run."""

import asyncio
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from bench.crash_sweep.stage import Stage
from bench.crash_sweep.steps import Steps
from bench.crash_sweep.swept import SweptLoop

_PR_SET_PDEATHSIG = 1

# What a process does until it ends or gets SIGTERM.
Play = Callable[[Stage, Steps], Coroutine[Any, Any, None]]


def start(role: str, stage: Stage, play: Play, step_counter: Steps, break_it: Callable[[], None] | None) -> int:
    """Fork a process that dies with this one, and return its pid. `break_it` makes it a broken variant."""
    # Block SIGTERM until its handler is installed.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if pid := os.fork():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return pid
    code = 1
    try:
        die_with_parent()
        descriptor = os.open(stage.log(role), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        if break_it:
            break_it()
        with asyncio.Runner(loop_factory=lambda: SweptLoop(step_counter)) as runner:
            runner.run(play(stage, step_counter))
        stage.counts(role).write_bytes(msgspec.json.encode(step_counter.counts))
        code = 0
    except BaseException:  # noqa: BLE001 - every error belongs in the log of this process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def die_with_parent() -> None:
    """Kill this process when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def accept_sigterm() -> None:
    """Unblock SIGTERM. Its handler must be installed."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
