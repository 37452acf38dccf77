"""The messages of the live stream `/api/v1/stream`. The data of the event `entry` is a `LoggedEntryView`."""

from typing import Literal

import msgspec

from kingdom.bus.log import LogEntry, LoggedEntry
from kingdom.views.bus import LoggedEntryView


class StreamReset(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The log does not contain the requested position: entries may be missing, and the stream continues at `cursor`."""

    cursor: str
    reason: Literal["not-in-log"] = "not-in-log"


# The SSE events of the stream, with the type of their data.
STREAM_EVENTS: dict[str, type[msgspec.Struct]] = {"entry": LoggedEntryView, "reset": StreamReset}
_FIELDS = LogEntry.__dataclass_fields__.keys()


def view_logged_entry(logged: LoggedEntry) -> msgspec.Struct:
    """Return the data of the event `entry`."""
    return LoggedEntryView(cursor=str(logged.cursor), **{name: getattr(logged.entry, name) for name in _FIELDS})
