"""The benches and the bounds they keep, run as somebody types them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Where seconds are compared: a busy moment of the machine spoils a try, our own doing spoils each of them.
TRIES = 3


def bench(name: str, *arguments: str | Path, ends_with: int, tries: int = 1) -> subprocess.CompletedProcess[str]:
    """Run a bench, and again until it ends with this exit code; what it printed last is returned."""
    command = [sys.executable, "-m", f"bench.{name}", *arguments]
    while True:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        tries -= 1
        if done.returncode == ends_with or not tries:
            break
    assert done.returncode == ends_with, f"{done.stdout}\n{done.stderr}"
    return done
