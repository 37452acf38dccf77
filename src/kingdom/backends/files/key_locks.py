"""Locks on dedup keys. If two open transactions of this process need the same key, the second waits for the first."""

import asyncio
from datetime import timedelta

from kingdom.errors import Conflict

Key = tuple[str, str]


class KeyLocks:
    """The transaction that holds each key. If transactions of two processes take a key, the first commit wins."""

    def __init__(self, patience: timedelta) -> None:
        self._patience = patience
        self._holders: dict[Key, tuple[object, asyncio.Event]] = {}

    async def acquire(self, holder: object, scope: str, key: str) -> None:
        """Wait until the key is free, then hold it."""
        try:
            async with asyncio.timeout(self._patience.total_seconds()):
                while (held := self._holders.get((scope, key))) and held[0] is not holder:
                    await held[1].wait()
        except TimeoutError:
            raise Conflict(f"another transaction holds the dedup key {scope}/{key}: try again") from None
        self._holders.setdefault((scope, key), (holder, asyncio.Event()))

    def release(self, holder: object) -> None:
        """Release all keys of a transaction that has ended."""
        for key, (owner, ended) in list(self._holders.items()):
            if owner is holder:
                del self._holders[key]
                ended.set()
