"""A bench that gets SIGTERM ends its servers and processes, and removes their files."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

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
    # A shell starts programs in the background like this.
    name, in_background = f"bench.{words[0]}", ["sh", "-c", """trap '' INT; exec "$@" """, "sh"]
    command = [*in_background, sys.executable, "-m", name, *words[1:]]
    with open_room() as room, started(command, room) as running:
        own, deadline = psutil.Process(running.pid), time.monotonic() + PATIENCE_SECONDS
        # The server is no child of the bench, but its command names its directory.
        while not (servers := find_processes(str(room), psutil.process_iter())) or not (
            workers := find_processes(name, own.children(recursive=True))
        ):
            assert running.poll() is None
            assert time.monotonic() < deadline
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE_SECONDS) == -signal.SIGINT
        while left := [*filter(is_alive, servers + workers), *room.iterdir()]:
            assert time.monotonic() < deadline, left


@contextmanager
def started(command: Sequence[str], temporary: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "TMPDIR": str(temporary)}
    output = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output) as running:
        try:
            yield running
        finally:
            running.kill()


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
