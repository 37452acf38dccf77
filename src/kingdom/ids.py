"""Identifiers: sortable event ids and W3C trace ids."""

import secrets
import time
from uuid import UUID

_VERSION_7 = 0x7 << 76
_VARIANT_RFC = 0b10 << 62


def new_event_id() -> UUID:
    """Return a UUIDv7: unique, and sorted by the millisecond of its making."""
    milliseconds = time.time_ns() // 1_000_000
    random = secrets.randbits(74)
    high, low = random >> 62, random & ((1 << 62) - 1)
    return UUID(int=(milliseconds << 80) | _VERSION_7 | (high << 64) | _VARIANT_RFC | low)


def new_trace_id() -> str:
    """Return a W3C trace id: 32 lower-case hexadecimal digits, never all zero."""
    return f"{secrets.randbits(127) + 1:032x}"
