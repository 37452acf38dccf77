"""Wait for the next refresh, which the user can trigger early."""

import asyncio


class RefreshTimer:
    """Waits for a time that `trigger` can cut short; a trigger before the wait ends it at once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def trigger(self) -> None:
        """End the current wait, or the next one."""
        self._event.set()

    async def wait(self, seconds: float | None) -> None:
        """Wait until triggered, at most so many seconds unless that is None."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return
        finally:
            self._event.clear()
