"""Run benches as commands, and check their exit codes."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def bench(name: str, *arguments: str | Path, ends_with: int) -> subprocess.CompletedProcess[str]:
    """Run a bench, check its exit code, and return its output."""
    command = [sys.executable, "-m", f"bench.{name}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == ends_with, f"{done.stdout}\n{done.stderr}"
    return done
