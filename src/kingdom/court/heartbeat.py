"""Signs of life: a role gives them from a thread of its own, and who looks tells since when each role is silent.

With a store of files a sign is the time of `state/{role}/heartbeat`, else a record per process. Times of several
machines are compared, so their clocks must agree to a few seconds.
"""

import asyncio
import os
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import msgspec
import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery, read_documents
from kingdom.clock import utc_now
from kingdom.court.records import CURRENT, ENDED
from kingdom.workflow.records import change, each

# Who gives them, as they are started: who watches and who tells come first, who lets new things in comes last.
ROLES = ("chamberlain", "envoy", "soldiers", "general", "king", "sentinel")
EVERY = timedelta(seconds=10)
# A loop that runs nothing for so long will not come back: from then on it counts as dead.
STUCK_AFTER = timedelta(minutes=10)
# Who ends does not wait for longer until a store that is away can be told.
_LAST_SIGN_SECONDS = 10.0
_FORGOTTEN_AFTER = timedelta(days=1)
HEARTBEATS = RecordKind(
    name="heartbeat",
    directories={CURRENT: "state/heartbeats", ENDED: "state/heartbeats/ended"},
    final=frozenset({ENDED}),
    retention=timedelta(days=1),
)
_log = structlog.get_logger("kingdom.court")


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """The last sign of life of one process of a role."""

    role: str
    machine: str
    pid: int
    at: datetime


class Signs(ABC):
    """Where signs of life are left."""

    @abstractmethod
    async def give(self, at: datetime) -> None:
        """Leave a sign."""

    @abstractmethod
    async def end(self) -> None:
        """Say that no more will follow, so that nobody misses them."""


class FileSigns(Signs):
    """Signs of a role in a directory; several processes of one role share the file."""

    def __init__(self, directory: Path, role: str) -> None:
        self._file = _file(directory, role)

    async def give(self, at: datetime) -> None:
        """See the port."""
        # A thread of its own waits for the disk, and for nothing else.
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.touch()
        os.utime(self._file, (at.timestamp(), at.timestamp()))

    async def end(self) -> None:
        """See the port."""
        self._file.unlink(missing_ok=True)


class RecordSigns(Signs):
    """Signs of one process of a role as a record."""

    def __init__(self, bus: Bus, role: str) -> None:
        self._bus = bus
        self._role = role
        self._id = f"{role}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(2)}"

    async def give(self, at: datetime) -> None:
        """See the port."""
        await self._put(at, CURRENT)

    async def end(self) -> None:
        """See the port."""
        await self._put(utc_now(), ENDED)

    async def _put(self, at: datetime, state: str) -> None:
        sign = Sign(role=self._role, machine=socket.gethostname(), pid=os.getpid(), at=at)

        async def act(transaction: Transaction) -> None:
            known = await transaction.get(HEARTBEATS.name, self._id)
            record = known or Record(kind=HEARTBEATS.name, id=self._id, state=state)
            await transaction.put(replace(record, state=state, doc=msgspec.to_builtins(sign)))

        await change(self._bus, act)


def signs_in_files(directory: Path, role: str) -> Callable[[], AbstractAsyncContextManager[Signs]]:
    """Return how a heart opens signs in a directory."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Signs]:
        yield FileSigns(directory, role)

    return opened


def signs_in_records(
    open_bus: Callable[[], AbstractAsyncContextManager[Bus]], role: str
) -> Callable[[], AbstractAsyncContextManager[Signs]]:
    """Return how a heart opens signs as records, on a bus of its own: another loop's would wait for that loop."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Signs]:
        async with open_bus() as bus:
            yield RecordSigns(bus, role)

    return opened


class Heart:
    """Gives signs of life while the block lasts, from a thread of its own, so that a busy loop does not look dead.

    A loop that is closed, or that answers nothing for `stuck_after`, gives none.
    """

    def __init__(
        self,
        signs: Callable[[], AbstractAsyncContextManager[Signs]],
        *,
        every: timedelta = EVERY,
        stuck_after: timedelta = STUCK_AFTER,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._signs = signs
        self._every_seconds = every.total_seconds()
        self._stuck_seconds = stuck_after.total_seconds()
        self._clock = clock
        self._stopped = threading.Event()
        self._answered_at = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._live, name="kingdom-heart", daemon=True)

    async def __aenter__(self) -> Self:
        """Begin to beat."""
        self._loop = asyncio.get_running_loop()
        self._answer()
        self._thread.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        """End, and say so."""
        self._stopped.set()
        # The thread may not have come so far as to wait, or may wait no more.
        with suppress(RuntimeError):
            self._wake()
        await asyncio.to_thread(self._thread.join, _LAST_SIGN_SECONDS)

    def _answer(self) -> None:
        self._answered_at = time.monotonic()

    def _live(self) -> None:
        while not self._stopped.is_set():
            try:
                asyncio.run(self._beat_forever())
            except Exception as error:  # noqa: BLE001 - a role that lives must not look dead
                _log.warning("no sign of life could be given, trying again", error=str(error))
                self._stopped.wait(self._every_seconds)

    async def _beat_forever(self) -> None:
        stopped, own_loop = asyncio.Event(), asyncio.get_running_loop()
        self._wake = lambda: own_loop.call_soon_threadsafe(stopped.set)
        async with self._signs() as signs:
            while not self._stopped.is_set():
                if self._loop_lives():
                    await signs.give(self._clock())
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._every_seconds):
                        await stopped.wait()
            await signs.end()

    def _loop_lives(self) -> bool:
        """Tell whether the loop of the role may still do something, and ask it for an answer until the next time."""
        if self._loop is None or self._loop.is_closed():
            return False
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._answer)
        return time.monotonic() - self._answered_at < self._stuck_seconds


async def each_sign(transaction: Transaction) -> list[Sign]:
    """Return the last sign of each process that is kept as a record, and that this version can read."""
    records = [record async for record in each(transaction, RecordQuery(kind=HEARTBEATS.name, state=CURRENT))]
    return list(read_documents(records, Sign))


async def last_signs(transaction: Transaction, directory: Path | None) -> dict[str, datetime]:
    """Return when each role was last heard of: of several processes the latest counts; one that ended is not missed."""
    found = [(sign.role, sign.at) for sign in await each_sign(transaction)]
    if directory is not None:
        found += _file_signs(directory)
    return dict(sorted(found, key=lambda sign: sign[1]))


async def forget_old_signs(transaction: Transaction, now: datetime) -> None:
    """Take processes off the list that died long ago and whose role was heard of since."""
    records = [record async for record in each(transaction, RecordQuery(kind=HEARTBEATS.name, state=CURRENT))]
    signs = [(sign, record) for record in records for sign in read_documents([record], Sign)]
    latest = {sign.role: sign.at for sign, _ in sorted(signs, key=lambda each: each[0].at)}
    for sign, record in signs:
        if sign.at < latest[sign.role] and now - sign.at > _FORGOTTEN_AFTER:
            await transaction.put(replace(record, state=ENDED))


def _file(directory: Path, role: str) -> Path:
    return directory / "state" / role / "heartbeat"


def _file_signs(directory: Path) -> list[tuple[str, datetime]]:
    found = []
    for path in (directory / "state").glob("*/heartbeat"):
        # A role may end just now.
        with suppress(FileNotFoundError):
            found.append((path.parent.name, datetime.fromtimestamp(path.stat().st_mtime, UTC)))
    return found
