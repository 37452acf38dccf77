"""The one thread that waits for syncs and for others, so that the event loop never does."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from kingdom.errors import Unavailable

T = TypeVar("T")


class DiskThread:
    """Does one call after the other, in the order of their coming."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)
        self.stopped = False

    async def run(self, act: Callable[[], T]) -> T:
        """Run something that waits for the disk; a cancelled caller still waits until it has ended."""
        if self.stopped:
            raise Unavailable("the store is closed")
        ended = asyncio.get_running_loop().run_in_executor(self._executor, act)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            # What has begun may commit; nobody may go on before that is decided, however often they are cancelled.
            while not ended.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([ended])
            # Nobody is left who could be told how it failed.
            ended.exception()
            raise

    def stop(self) -> None:
        """End the thread after what it was asked for already."""
        self.stopped = True
        self._executor.shutdown(wait=False)
