"""How long a test waits for what must happen: a bound for a machine that others use too, never a pace."""

import asyncio
from datetime import timedelta
from typing import Any

PATIENCE_SECONDS = 300.0


async def let_pass(limit: timedelta) -> None:
    """Let a limit that somebody of the running loop keeps be over at this very moment, however slow the machine is."""
    loop: Any = asyncio.get_running_loop()
    now, seconds = loop.time, limit.total_seconds()
    # What has begun is seen from outside before its time is counted, and nobody tells of a new timer.
    async with asyncio.timeout(PATIENCE_SECONDS) as patience:
        while not any(  # noqa: ASYNC110
            each.when() > now() + seconds / 2
            for each in loop._scheduled
            if not each.cancelled() and each.when() != patience.when()
        ):
            await asyncio.sleep(0)
    loop.time = lambda: now() + seconds
