"""The thread that waits for the disk and the lock, so that the event loop does not wait."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from kingdom.errors import Unavailable

T = TypeVar("T")


class DiskThread:
    """Runs blocking calls in one thread, one after another in the order of their arrival."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)
        self.stopped = False

    async def run(self, act: Callable[[], T]) -> T:
        """Run a blocking call in the thread. A cancelled caller still waits until the call has ended."""
        if self.stopped:
            raise Unavailable("the store is closed")
        ended = asyncio.get_running_loop().run_in_executor(self._executor, act)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            # The call may still commit. The caller must not continue before the call has ended.
            while not ended.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([ended])
            # Read the exception so that asyncio does not report it. The caller only sees the cancellation.
            ended.exception()
            raise

    def stop(self) -> None:
        """End the thread after the calls that are already queued."""
        self.stopped = True
        self._executor.shutdown(wait=False)
