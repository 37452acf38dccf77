"""The model of the agents: a stub of the vendors' APIs in its own process, which survives every crash."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.crash_sweep.process import die_with_parent

_ROOT = Path(__file__).parents[2]
_PROGRAM = (sys.executable, "-m", "tests.fakes.model")


@contextmanager
def model_stub() -> Iterator[str]:
    """Run the stub and yield its address."""
    with subprocess.Popen(
        _PROGRAM,
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has one thread
    ) as process:
        try:
            assert process.stdout
            if not (url := process.stdout.readline().strip()):
                raise RuntimeError(f"the model stub did not start: exit code {process.wait()}")
            yield url
        finally:
            process.kill()
