"""Wait for the next refresh, which the user can trigger early."""

import asyncio


class RefreshTimer:
    """Waits for some time. `trigger` ends the current wait. If there is none, the next wait ends at once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def trigger(self) -> None:
        """End the current wait, or else the next one."""
        self._event.set()

    async def wait(self, seconds: float | None) -> None:
        """Wait until triggered or until the seconds have passed. None means no time limit."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return
        finally:
            self._event.clear()
