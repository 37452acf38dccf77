"""Wake-ups by inotify: one small file a stream is touched after a commit, and one directory is watched."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection
from datetime import timedelta

import structlog
from watchfiles import awatch

from kingdom.backends.files.layout import Layout, id_of_name
from kingdom.backends.hints import Hints

# How long a burst of changes is collected before it is told; watchfiles itself adds a few milliseconds.
STEP_MS = 1
DEBOUNCE_MS = 5
_RETRY_SECONDS = 1.0
# It tells of every batch of changes, which concerns nobody.
logging.getLogger("watchfiles").setLevel(logging.WARNING)
_log = structlog.get_logger(__name__)


class Wakeups:
    """Tells waiting workers, here and in other processes, that a stream may have work."""

    def __init__(self, layout: Layout, dropped: Callable[[Collection[str]], None], drop_boxes: Collection[str]) -> None:
        self._layout = layout
        self._hints = Hints()
        self._dropped = dropped
        self._drop_boxes = tuple(drop_boxes)
        self._rung_at: dict[str, int] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    def published(self, streams: Collection[str]) -> None:
        """Wake the waiters of this process now, and those of others within milliseconds."""
        self._hints.notify(streams)
        now = time.time()
        for stream in streams:
            path = self._layout.bell(stream)
            try:
                os.utime(path, (now, now))
            except FileNotFoundError:
                with contextlib.suppress(OSError):
                    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            except OSError as error:
                # A lost hint costs one polling period, never an event.
                _log.debug("wake-up not sent", stream=stream, error=str(error))

    async def wait(self, streams: Collection[str], at_most: timedelta) -> None:
        """Return at a hint for one of the streams, or after `at_most`."""
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch(), name="kingdom-watch")
        await self._hints.wait(streams, at_most)

    async def close(self) -> None:
        """Stop watching."""
        self._ended.set()
        if self._watcher:
            self._watcher.cancel()
            await asyncio.wait({self._watcher})

    async def _watch(self) -> None:
        bells = f"{self._layout.wake}/"
        while not self._ended.is_set():
            try:
                watched = [self._layout.wake, *self._drop_boxes]
                changes = awatch(
                    *watched,
                    watch_filter=None,
                    step=STEP_MS,
                    debounce=DEBOUNCE_MS,
                    stop_event=self._ended,
                    recursive=False,
                    yield_on_timeout=True,
                )
                self._hints.notify_all()
                async for batch in changes:
                    # It forgets a change that comes while it hands over others or ends its wait: the bells know.
                    self._hints.notify(self._rung())
                    if dropped := {path for _, path in batch if not path.startswith(bells)}:
                        self._dropped(dropped)
            except Exception as error:  # noqa: BLE001 - a file name that is no text ends the watcher, and not the work
                _log.warning("wake-ups interrupted, polling goes on", error=str(error))
                await asyncio.sleep(_RETRY_SECONDS)

    def _rung(self) -> set[str]:
        """Return the streams whose bells have rung since the last look."""
        seen: dict[str, int] = {}
        with os.scandir(self._layout.wake) as bells:
            for bell in bells:
                with contextlib.suppress(FileNotFoundError):
                    seen[bell.name] = bell.stat().st_mtime_ns
        rung = {id_of_name(name) for name, at in seen.items() if self._rung_at.get(name) != at}
        self._rung_at = seen
        return {stream for stream in rung if stream}
