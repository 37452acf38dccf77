"""The garbage collector takes little time of a role."""

import subprocess
import sys

_COUNT_COLLECTIONS = """
import asyncio, gc
from kingdom.cli.framework.long_running import run_until_stopped

class Part:
    async def run(self):
        starts = []
        gc.callbacks.append(lambda phase, info: starts.append(phase) if phase == "start" else None)
        kept = [[number] for number in range(100_000)]
        print(len(starts), gc.get_freeze_count() > 10_000)

    def stop(self, *, at_once=False):
        pass

asyncio.run(run_until_stopped([Part()]))
"""


def test_a_role_that_keeps_many_objects_rarely_collects_garbage_and_never_scans_modules() -> None:
    done = subprocess.run([sys.executable, "-c", _COUNT_COLLECTIONS], capture_output=True, text=True, check=True)
    collections, modules_are_frozen = done.stdout.splitlines()[0].split()
    assert 1 <= int(collections) <= 6
    assert modules_are_frozen == "True"
