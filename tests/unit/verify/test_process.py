"""One process of a verification, started as the verification starts it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil

from kingdom.verify.fleet import COMMAND
from kingdom.verify.process_config import ProcessConfig
from tests.patience import PATIENCE_SECONDS

# A parent that starts one process, tells it who its parent is, and prints its id when it is ready.
PARENT = """
import os, subprocess, sys
with subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
    process.stdin.write(sys.argv[1].replace('"parent":0', f'"parent":{os.getpid()}').encode() + b"\\n")
    process.stdin.close()
    process.stdout.readline()
    print(process.pid, flush=True)
    process.wait()
"""


def test_a_process_of_a_verification_that_is_killed_ends_with_it(tmp_path: Path) -> None:
    # A steady worker without events runs until it gets a signal.
    config = ProcessConfig(
        role="steady",
        name="steady-1",
        url=f"file:{tmp_path / 'store'}",
        schema="",
        directory=str(tmp_path),
        target_port=0,
        seed=0,
        lease_seconds=1,
        failure_rate=0,
        pause_seconds=0,
        steady_lease_seconds=1,
    )
    command = [sys.executable, "-c", PARENT, msgspec.json.encode(config).decode(), *COMMAND]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        worker = psutil.Process(int(parent.stdout.readline()))
        try:
            os.kill(parent.pid, signal.SIGKILL)
            assert psutil.wait_procs([worker], PATIENCE_SECONDS)[1] == []
        finally:
            if worker.is_running():
                worker.kill()
