"""A role in its own process: writes heartbeats until it is killed, or blocks its event loop if `hangs` is set."""

import asyncio
import sys
import time
from datetime import timedelta
from pathlib import Path

from kingdom.court.heartbeat import HeartbeatThread, heartbeats_in_files


async def main(directory: str, *, hangs: bool, stuck_after: float) -> None:
    signs = heartbeats_in_files(Path(directory), "king")
    async with HeartbeatThread(signs, every=timedelta(seconds=0.05), stuck_after=timedelta(seconds=stuck_after)):
        # A loop that is blocked before the first heartbeat may never write one.
        while not (Path(directory) / "state/king/heartbeat").exists():  # noqa: ASYNC110 - files send no notification
            await asyncio.sleep(0.01)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        if hangs:
            time.sleep(600)  # noqa: ASYNC251 - block the event loop on purpose
        await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], hangs=sys.argv[2] == "hangs", stuck_after=float(sys.argv[3])))
