"""A process that starts a program in a sandbox and then does nothing, until it is killed."""

import asyncio
import sys
from pathlib import Path

from kingdom.soldiers.processes.program import start_program
from kingdom.soldiers.sandbox.sandbox import Sandbox, SandboxProfile
from tests.integration.processes import say
from tests.integration.soldiers.processes import MARK


async def run(folder: Path, mark: str) -> None:
    await start_program(
        ["/bin/sh", "-c", "setsid sleep 925 & sleep 924"],
        cwd=folder,
        environment={"PATH": "/usr/bin:/bin", MARK: mark},
        errors=None,
        sandbox=Sandbox(profile=SandboxProfile.STRICT, writable=(folder,)),
    )
    say("ready")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), sys.argv[2]))
