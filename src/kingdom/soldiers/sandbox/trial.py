"""Whether this machine can make a sandbox, found out by making one."""

import os
import shutil
import subprocess

from kingdom.soldiers.sandbox.bubblewrap import enclosing
from kingdom.soldiers.sandbox.sandbox import Profile, Sandbox
from kingdom.text import with_reason

# Started as every program of an agent is, so that nothing but bubblewrap can fail.
_PROGRAM = "/bin/true"
_LIMIT_SECONDS = 10
_WORDS_MAX = 500


def why_no_sandbox(profile: Profile) -> str:
    """Return why no program can be started under a profile, or nothing where one can: one is started."""
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        return "bubblewrap is not installed: bwrap is not on PATH"
    with enclosing(Sandbox(profile=profile), {}) as (options, kept):
        try:
            done = subprocess.run(  # noqa: S603 - bubblewrap as it is installed
                [bubblewrap, *options, "--", _PROGRAM],
                env={"PATH": os.defpath},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                pass_fds=kept,
                timeout=_LIMIT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"bubblewrap cannot be started: {error}"
    words = (done.stderr + done.stdout).decode(errors="replace").strip()[:_WORDS_MAX]
    return with_reason(f"{bubblewrap} ended with {done.returncode}", words) if done.returncode else ""
