"""Background work for people. It may fail, is not retried, and blocks nothing."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from kingdom.failure_log import log_failure

# How long the end of the process waits for running tasks.
_LAST_WAIT_SECONDS = 5.0
_log = structlog.get_logger("kingdom.court")


class BackgroundTasks:
    """The background tasks of a process."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Start a task. `name` identifies it in the log if it fails."""
        task = asyncio.create_task(_run_logged(name, run))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def end(self) -> None:
        """Wait briefly for running tasks, then cancel them."""
        running = set(self._running)
        if running:
            _, late = await asyncio.wait(running, timeout=_LAST_WAIT_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


async def _run_logged(name: str, run: Callable[[], Awaitable[None]]) -> None:
    try:
        await run()
    except Exception as error:  # noqa: BLE001 - nothing depends on background work
        log_failure(_log, "background work failed", error, what=name)
