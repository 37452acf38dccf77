"""Identifiers: sortable event ids, short ids for people, and W3C trace ids."""

import os
import secrets
import time
from datetime import datetime
from uuid import UUID, SafeUUID

_VERSION_7 = 0x7 << 76
_VARIANT_RFC = 0b10 << 62
# Reading a member of an enum takes a fifth of the time of creating an id.
_NOT_KNOWN_TO_BE_SAFE = SafeUUID.unknown
# The 74 bits of a UUIDv7 that are neither time, version nor variant.
_RANDOM_BITS = (1 << 76) - 1 ^ 0b11 << 62
# Digits and letters that are not easily confused.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


class FreshId(UUID):
    """An id that this process has just created, so no store has it yet. An id read from elsewhere is a plain UUID."""

    __slots__ = ()

    def __init__(self, number: int) -> None:
        # The number needs no conversion and no checks, which are most of the work of UUID.
        object.__setattr__(self, "int", number)
        object.__setattr__(self, "is_safe", _NOT_KNOWN_TO_BE_SAFE)


def new_event_id() -> FreshId:
    """Return a UUIDv7: unique, and sorted by the millisecond of its creation."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10)) & _RANDOM_BITS
    return FreshId((milliseconds << 80) | _VERSION_7 | _VARIANT_RFC | random)


def new_id(prefix: str) -> str:
    """Return a short id for people to type, such as `wf-01k9x3v7m2q4t6`, sorted by the millisecond of its creation."""
    return _encode_id(prefix, (time.time_ns() // 1_000_000) << 25 | secrets.randbits(25))


def first_id(prefix: str, at: datetime) -> str:
    """Return the smallest short id of a time. Every id created earlier sorts before it."""
    return _encode_id(prefix, int(at.timestamp() * 1000) << 25)


def new_trace_id() -> str:
    """Return a W3C trace id: 32 lower-case hexadecimal digits."""
    # An id of zeros would be invalid, but 128 random bits are never all zero.
    return os.urandom(16).hex()


def _encode_id(prefix: str, number: int) -> str:
    return f"{prefix}-" + "".join(_ALPHABET[number >> shift & 31] for shift in range(65, -1, -5))
