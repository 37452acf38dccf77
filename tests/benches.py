"""The benches and the bounds they keep, run as somebody types them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def bench(name: str, *arguments: str | Path, ends_with: int) -> subprocess.CompletedProcess[str]:
    """Run a bench, which must end with this exit code, and return what it printed."""
    command = [sys.executable, "-m", f"bench.{name}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == ends_with, f"{done.stdout}\n{done.stderr}"
    return done
