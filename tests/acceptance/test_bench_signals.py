"""A bench that gets SIGTERM ends its servers and processes, and removes their files."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from bench.servers import until
from tests.benches import ROOT
from tests.integration.embedded import open_room
from tests.patience import PATIENCE_SECONDS

SLOW_CLEANUP = """
import asyncio, sys
from bench.servers import exit_on_sigterm

async def main():
    try:
        print("ready", flush=True)
        await asyncio.Event().wait()
    finally:
        print("cleaning", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print("clean", flush=True)

exit_on_sigterm()
asyncio.run(main())
"""


SIGTERM_DURING_FORK = """
import os, signal
from bench.crash_sweep.trial import begin_trial
from bench.servers import exit_on_sigterm

exit_on_sigterm()
os.register_at_fork(before=lambda: os.kill(os.getpid(), signal.SIGTERM))
# The child fails at once, because it gets no course.
begin_trial(None, None, ())
"""


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
    with open_room() as room, started(command, room) as bench:

        def has_server_and_worker() -> bool:
            # The server is no child of the bench, but its command names its directory.
            assert bench.poll() is None
            commands = [command for process, command in processes_of(room).items() if process.pid != bench.pid]
            return all(any(part in command for command in commands) for part in (f"{room}/", name))

        wait_until(has_server_and_worker)
        bench.send_signal(signal.SIGTERM)
        assert bench.wait(PATIENCE_SECONDS) == -signal.SIGINT
        wait_until(lambda: not processes_of(room) and not any(room.iterdir()))


def test_a_sigterm_during_a_fork_ends_a_sweep() -> None:
    program = [sys.executable, "-c", SIGTERM_DURING_FORK]
    done = subprocess.run(program, cwd=ROOT, stderr=subprocess.DEVNULL, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == -signal.SIGINT


def test_a_second_sigterm_does_not_interrupt_the_cleanup() -> None:
    command, pipe = [sys.executable, "-c", SLOW_CLEANUP], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as program:
        assert program.stdin
        assert program.stdout
        for line in ("ready", "cleaning"):
            assert program.stdout.readline() == f"{line}\n"
            program.send_signal(signal.SIGTERM)
        assert program.communicate("go on\n", timeout=PATIENCE_SECONDS)[0] == "clean\n"
        assert program.returncode == -signal.SIGINT


@contextmanager
def started(command: Sequence[str], room: Path) -> Iterator[subprocess.Popen[bytes]]:
    output = subprocess.DEVNULL
    environment = {**os.environ, "TMPDIR": str(room)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output) as bench:
        try:
            yield bench
        finally:
            for process in processes_of(room):
                with suppress(psutil.Error):
                    process.kill()


def processes_of(room: Path) -> dict[psutil.Process, str]:
    """Return the processes with this TMPDIR and their commands: those of a bench, and the first of each server."""
    found = {}
    for process in psutil.process_iter():
        # The process may end in the meantime.
        with suppress(psutil.Error):
            if process.environ().get("TMPDIR") == str(room) and process.status() != psutil.STATUS_ZOMBIE:
                found[process] = " ".join(process.cmdline())
    return found


def wait_until(holds: Callable[[], bool]) -> None:
    assert any(holds() for _ in until(PATIENCE_SECONDS))
