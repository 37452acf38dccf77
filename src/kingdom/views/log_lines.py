"""Log lines."""

from datetime import datetime

import msgspec


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A log line. It can have further fields."""

    at: datetime
    level: str
    event: str
