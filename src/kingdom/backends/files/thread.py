"""The one thread that waits for the disk, so that the event loop never does.

An executor would do; a queue and a future of our own cost half of what it adds to every publish.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from kingdom.errors import Unavailable

T = TypeVar("T")


class _Call:
    """Something to do, and how its caller learns what came of it; `over` is set also where the caller was cancelled."""

    __slots__ = ("act", "loop", "outcome", "over")

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act
        self.loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[Any] = self.loop.create_future()
        self.over = asyncio.Event()

    def tell(self, result: Any, error: BaseException | None) -> None:
        self.over.set()
        if self.outcome.done():
            return
        if error is None:
            self.outcome.set_result(result)
        else:
            self.outcome.set_exception(error)


class DiskThread:
    """Does one call after the other, in the order of their coming."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._stopped = False
        # A process that ends without closing its bus must not hang; what is half done is replayed.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    async def run(self, act: Callable[[], T]) -> T:
        """Run something that waits for the disk; a cancelled caller still waits until it has ended."""
        if self._stopped:
            raise Unavailable("the store is closed")
        if self._thread.ident is None:
            self._thread.start()
        call = _Call(act)
        self._calls.put(call)
        try:
            result: T = await call.outcome
        except asyncio.CancelledError:
            # What has begun may commit; nobody may go on before that is decided.
            await call.over.wait()
            raise
        return result

    def stop(self) -> None:
        """End the thread after what it was asked for already."""
        self._stopped = True
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                result, error = call.act(), None
            except BaseException as raised:  # noqa: BLE001 - whatever it is, it belongs to who has asked
                result, error = None, raised
            # A loop that was closed has nobody left who waits.
            with suppress(RuntimeError):
                call.loop.call_soon_threadsafe(call.tell, result, error)
            # Nothing of a call may outlive it here until the next one comes.
            del call, result, error
