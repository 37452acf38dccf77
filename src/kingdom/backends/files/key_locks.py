"""Dedup keys that open transactions of this process hold: a second asker waits for the outcome of the first."""

import asyncio
from datetime import timedelta

from kingdom.errors import Conflict

Key = tuple[str, str]


class Keyring:
    """Who holds which key; between processes the commit decides."""

    def __init__(self, patience: timedelta) -> None:
        self._patience = patience
        self._holders: dict[Key, tuple[object, asyncio.Event]] = {}

    async def take(self, holder: object, scope: str, key: str) -> None:
        """Wait until nobody else holds the key, then hold it."""
        try:
            async with asyncio.timeout(self._patience.total_seconds()):
                while (held := self._holders.get((scope, key))) and held[0] is not holder:
                    await held[1].wait()
        except TimeoutError:
            raise Conflict(f"another transaction holds the dedup key {scope}/{key} for long: ask again") from None
        self._holders.setdefault((scope, key), (holder, asyncio.Event()))

    def give_back(self, holder: object) -> None:
        """Let go of all keys of a holder whose transaction has ended."""
        for key, (owner, ended) in list(self._holders.items()):
            if owner is holder:
                del self._holders[key]
                ended.set()
