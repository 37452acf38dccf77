"""An external system, which no transaction covers: a file of payments that survives the processes that write it."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from kingdom.bus import Absent, Acked, Attempt, CallResult, Effect, Event, Idempotency, Present, ReconcileResult, Target


class Payment(Effect[dict[str, Any]]):
    """Pays by writing the identifier of the attempt. `before` and `after` run around that."""

    def __init__(
        self,
        book: Path,
        idempotency: Idempotency = Idempotency.IDENTIFIER,
        *,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self.target = Target(name="bank", idempotency=idempotency, settles_after=timedelta(milliseconds=50))
        self._book = book
        self._before = before
        self._after = after

    def key(self, event: Event[dict[str, Any]]) -> str:
        return f"invoice-{event.payload['invoice']}"

    def request(self, event: Event[dict[str, Any]]) -> Mapping[str, Any]:
        return {"invoice": event.payload["invoice"]}

    async def call(self, attempt: Attempt) -> CallResult:
        self._before()
        with self._book.open("a") as book:
            book.write(f"{attempt.identifier}\n")
        self._after()
        return Acked()

    async def reconcile(self, attempt: Attempt) -> ReconcileResult:
        return Present() if attempt.identifier in calls(self._book) else Absent()


def calls(book: Path) -> list[str]:
    """Return the identifier of every call that arrived."""
    return book.read_text().splitlines() if book.exists() else []


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def be_cancelled() -> None:
    """Await a cancelled task, as a library may do."""
    inner = asyncio.ensure_future(asyncio.sleep(0))
    inner.cancel()
    await inner
