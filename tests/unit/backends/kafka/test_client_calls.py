"""Blocking calls of the Kafka client in threads."""

import asyncio
import gc
import weakref

import pytest

from kingdom.backends.kafka.client_calls import call_client
from kingdom.errors import Unavailable


class Piece:
    """What a caller sends, which may be large."""


async def test_what_a_failed_call_has_sent_is_freed_without_the_garbage_collector() -> None:
    async def send(piece: Piece) -> weakref.ref[Piece]:
        def fail() -> None:
            raise Unavailable(f"no broker takes {piece}")

        with pytest.raises(Unavailable):
            await call_client(fail, asyncio.Event())
        return weakref.ref(piece)

    gc.disable()
    try:
        sent = await send(Piece())
        # The cancelled wait for a stop still has to end.
        await asyncio.sleep(0)
        assert sent() is None
    finally:
        gc.enable()
