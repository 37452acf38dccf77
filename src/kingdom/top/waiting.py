"""Waiting for the next look, which a person may call for at once."""

import asyncio


class Alarm:
    """Wakes whoever waits for it; one that rang while nobody waited wakes the next one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake them now."""
        self._event.set()

    async def wait(self, seconds: float | None) -> None:
        """Return when it rings, or after so many seconds if that is a number."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return
        finally:
            self._event.clear()
