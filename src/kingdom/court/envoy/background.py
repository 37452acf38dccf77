"""What is done for people on the side: it may fail, is not repeated, and holds nothing up."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

_LAST_WAIT_SECONDS = 5.0
_log = structlog.get_logger("kingdom.court")


class BackgroundTasks:
    """Things that go on beside the work of a process."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Begin something; `what` names it in the log where it fails."""
        task = asyncio.create_task(_run_logged(name, run))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def end(self) -> None:
        """Wait a moment for what runs, then give it up."""
        running = set(self._running)
        if running:
            _, late = await asyncio.wait(running, timeout=_LAST_WAIT_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


async def _run_logged(name: str, run: Callable[[], Awaitable[None]]) -> None:
    try:
        await run()
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing depends on it
        _log.warning("something on the side failed", what=name, error=f"{type(error).__name__}: {error}")
