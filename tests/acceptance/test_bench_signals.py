"""A bench that gets SIGTERM ends its servers and processes, and removes their files."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

import psutil
import pytest

from tests.benches import ROOT
from tests.integration.embedded import open_room
from tests.patience import PATIENCE_SECONDS


@pytest.mark.variants
@pytest.mark.parametrize(
    "words",
    [
        ("chaos", "--backend", "postgres", "--seconds", "600", "--no-variants"),
        ("crash_sweep", "--backend", "postgres", "--no-variants"),
        ("stream", "--backend", "postgres"),
        ("trading", "--no-variants"),
    ],
    ids=lambda words: words[0],
)
def test_a_bench_that_gets_sigterm_leaves_no_process_and_no_file(words: tuple[str, ...]) -> None:
    command, name = [sys.executable, "-m", f"bench.{words[0]}", *words[1:]], f"bench.{words[0]}"
    with open_room() as room:
        environment = {**os.environ, "TMPDIR": str(room)}
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as running:
            own, deadline = psutil.Process(running.pid), time.monotonic() + PATIENCE_SECONDS
            # The server is no child of the bench, but its command names its directory.
            while not (servers := find_processes(str(room), psutil.process_iter())) or not (
                workers := find_processes(name, own.children(recursive=True))
            ):
                assert running.poll() is None
                assert time.monotonic() < deadline
            running.send_signal(signal.SIGTERM)
            assert running.wait(PATIENCE_SECONDS) == -signal.SIGINT
        deadline = time.monotonic() + PATIENCE_SECONDS
        while left := [*filter(is_alive, servers + workers), *room.iterdir()]:
            assert time.monotonic() < deadline, left


def find_processes(words: str, processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the processes with these words in their commands."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            found += [process] if words in " ".join(process.cmdline()) else []
    return found


def is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False
