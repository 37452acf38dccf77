"""Create a sandbox to find out whether this machine can."""

import os
import shutil
import subprocess

from kingdom.soldiers.sandbox.bubblewrap import bubblewrap_options
from kingdom.soldiers.sandbox.sandbox import Sandbox, SandboxProfile
from kingdom.text import with_reason

# A program that always succeeds, so only bubblewrap can fail.
_PROGRAM = "/bin/true"
_LIMIT_SECONDS = 10
_OUTPUT_LENGTH_MAX = 500


def find_sandbox_problem(profile: SandboxProfile) -> str:
    """Start a program under a profile; return why that fails, or an empty text if it works."""
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        return "bubblewrap is not installed: bwrap is not on PATH"
    with bubblewrap_options(Sandbox(profile=profile), {}) as (options, descriptors):
        try:
            done = subprocess.run(  # noqa: S603 - runs the installed bubblewrap
                [bubblewrap, *options, "--", _PROGRAM],
                env={"PATH": os.defpath},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                pass_fds=descriptors,
                timeout=_LIMIT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"bubblewrap cannot be started: {error}"
    words = (done.stderr + done.stdout).decode(errors="replace").strip()[:_OUTPUT_LENGTH_MAX]
    return with_reason(f"{bubblewrap} ended with {done.returncode}", words) if done.returncode else ""
