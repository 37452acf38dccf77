"""Wake-ups by inotify. A commit touches one small file per stream, and all processes watch these files."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection
from datetime import timedelta

import structlog
from watchfiles import awatch

from kingdom.backends.files.tree.layout import StoreLayout, id_of_name
from kingdom.backends.hints import Hints

# How long watchfiles collects changes before it reports them.
STEP_MS = 1
DEBOUNCE_MS = 5
_RETRY_SECONDS = 1.0
# watchfiles logs every batch of changes.
logging.getLogger("watchfiles").setLevel(logging.WARNING)
_log = structlog.get_logger(__name__)


class FileWakeups:
    """Wakes waiting workers of this and other processes when a stream may have due events."""

    def __init__(
        self, layout: StoreLayout, on_dropped: Callable[[Collection[str]], None], drop_directories: Collection[str]
    ) -> None:
        self._layout = layout
        self._hints = Hints()
        self._on_dropped = on_dropped
        self._drop_directories = tuple(drop_directories)
        self._touched_at: dict[str, int] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    def wake_workers(self, streams: Collection[str]) -> None:
        """Wake the workers of this process now, and those of other processes within milliseconds."""
        self._hints.notify(streams)
        now = time.time()
        for stream in streams:
            path = self._layout.wake_file(stream)
            try:
                os.utime(path, (now, now))
            except FileNotFoundError:
                with contextlib.suppress(OSError):
                    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            except OSError as error:
                # Without the hint, other processes find the event at their next poll.
                _log.debug("wake-up not sent", stream=stream, error=str(error))

    def wake_own_workers(self, streams: Collection[str]) -> None:
        """End the current wait for these streams, or else the next: a claim or settlement may have left due events."""
        if streams:
            self._hints.notify(streams)

    async def wait(self, streams: Collection[str], at_most: timedelta) -> None:
        """Wait for a hint for one of the streams, but no longer than `at_most`."""
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
        wake_directory = f"{self._layout.wake}/"
        while not self._ended.is_set():
            try:
                watched = [self._layout.wake, *self._drop_directories]
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
                    # watchfiles may not report every change, so compare the modification times.
                    self._hints.notify(self._touched_streams())
                    if dropped := {path for _, path in batch if not path.startswith(wake_directory)}:
                        self._on_dropped(dropped)
            except Exception as error:  # noqa: BLE001 - a file name that is no text must not end the wake-ups
                _log.warning("wake-ups interrupted; workers poll meanwhile", error=str(error))
                await asyncio.sleep(_RETRY_SECONDS)

    def _touched_streams(self) -> set[str]:
        """Return the streams whose files were touched since the last call."""
        seen: dict[str, int] = {}
        with os.scandir(self._layout.wake) as found:
            for file in found:
                with contextlib.suppress(FileNotFoundError):
                    seen[file.name] = file.stat().st_mtime_ns
        touched = {id_of_name(name) for name, at in seen.items() if self._touched_at.get(name) != at}
        self._touched_at = seen
        return {stream for stream in touched if stream}
