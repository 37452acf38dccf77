"""Broken variants, which the bench must catch."""

from collections.abc import Callable
from typing import Any

from kingdom.bus.log import LogCursor, LoggedEntry
from kingdom.web import log_feed, stream

AS_IT_IS = "as-it-is"
# A page that reads its data first and its cursor afterwards.
CURSOR_AFTER_DATA = "cursor-after-data"


def _send_no_ids() -> None:
    encode = log_feed.encode_frame

    def without_id(logged: LoggedEntry) -> log_feed.Frame:
        frame = encode(logged)
        return log_feed.Frame(frame.cursor, frame.kind, frame.text.partition(b"\n")[2])

    def no_position(_cursor: LogCursor) -> bytes:
        return b": no id\n\n"

    log_feed.encode_frame = without_id
    modules: tuple[Any, ...] = (log_feed, stream)
    for module in modules:
        module.encode_position = no_position


def _ignore_open_writers() -> None:
    from kingdom.backends.postgres.log_horizon import LogHorizon, LogWriters  # noqa: PLC0415 - needs the driver

    def observe(horizon: LogHorizon, seen: LogWriters) -> None:
        horizon.sequence = seen.last

    broken: Any = LogHorizon
    broken.observe = observe


def _ignore_last_event_id() -> None:
    """Resume at the end of the log, as a server does that ignores `Last-Event-ID`."""
    stream._parse_position = lambda text: LogCursor() if text == "start" else None


SERVER_VARIANTS: dict[str, Callable[[], None]] = {
    "no-id": _send_no_ids,
    "no-resume": _ignore_last_event_id,
    "no-horizon": _ignore_open_writers,
}
VARIANTS = (*SERVER_VARIANTS, CURSOR_AFTER_DATA)
# Files have one writer at a time, so there are no open writers to ignore.
NOT_ON_FILES = frozenset({"no-horizon"})
