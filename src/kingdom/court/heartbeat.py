"""Heartbeats: each role writes them from a separate thread, and readers see how long each role has been silent.

In a file store, a heartbeat is the modification time of `state/{role}/heartbeat`. Otherwise it is one record per
process. The General role also writes a heartbeat for each General that it serves. Readers compare times of several
machines, so clocks must agree within a few seconds.
"""

import asyncio
import os
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Self

import msgspec
import structlog

from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery, read_documents
from kingdom.clock import utc_now
from kingdom.court.records import CURRENT, ENDED
from kingdom.errors import KingdomError
from kingdom.failure_log import log_failure
from kingdom.workflow.records import PAGE_SIZE, each_record, run_transaction

# In start order: the roles that watch and inform come first, the role that lets events in comes last.
ROLES = ("chamberlain", "envoy", "soldiers", "general", "king", "sentinel")
# The role that a court can do without. It starts last, and is not part of the court's status.
WEB = "web"
EVERY = timedelta(seconds=10)
# An event loop that runs nothing for this long counts as dead.
STUCK_AFTER = timedelta(minutes=10)
# How long a stopping process waits for a store that is unavailable.
_LAST_HEARTBEAT_SECONDS = 10.0
# The record of a process that died is ended after this time if its role has a newer heartbeat.
_FORGOTTEN_AFTER = timedelta(days=1)
HEARTBEATS = RecordKind(
    name="heartbeat",
    directories={CURRENT: "state/heartbeats", ENDED: "state/heartbeats/ended"},
    final=frozenset({ENDED}),
    retention=timedelta(days=1),
)
# The first page of the heartbeats, as `each_record` reads it.
CURRENT_HEARTBEATS = RecordQuery(kind=HEARTBEATS.name, state=CURRENT, limit=PAGE_SIZE)
# Return the members of a role by name, and whether the role serves them now. The heartbeat thread calls this.
Members = Callable[[], Mapping[str, bool]]
_log = structlog.get_logger("kingdom.court")


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """The last heartbeat of one process of a role."""

    role: str
    machine: str
    pid: int
    at: datetime


class HeartbeatWriter(ABC):
    """Writes the heartbeats of one process."""

    @abstractmethod
    async def beat(self, at: datetime) -> None:
        """Write a heartbeat."""

    @abstractmethod
    async def end(self) -> None:
        """Remove the heartbeat, so that an intended stop does not look like an outage."""


class FileHeartbeatWriter(HeartbeatWriter):
    """Writes heartbeats of a role to a file that all processes of the role share."""

    def __init__(self, directory: Path, role: str) -> None:
        self._file = _file(directory, role)

    async def beat(self, at: datetime) -> None:
        """Touch the file."""
        # Blocking calls are fine here: this runs in the heartbeat thread, which does nothing else.
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.touch()
        os.utime(self._file, (at.timestamp(), at.timestamp()))

    async def end(self) -> None:
        """Delete the file."""
        self._file.unlink(missing_ok=True)


class RecordHeartbeatWriter(HeartbeatWriter):
    """Writes heartbeats of one process to a record."""

    def __init__(self, bus: Bus, role: str) -> None:
        self._bus = bus
        self._role = role
        self._id = f"{role}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(2)}"

    async def beat(self, at: datetime) -> None:
        """Save the record."""
        await self._put(at, CURRENT)

    async def end(self) -> None:
        """Mark the record as ended."""
        await self._put(utc_now(), ENDED)

    async def _put(self, at: datetime, state: str) -> None:
        heartbeat = Heartbeat(role=self._role, machine=socket.gethostname(), pid=os.getpid(), at=at)

        async def act(transaction: Transaction) -> None:
            known = await transaction.get(HEARTBEATS.name, self._id)
            record = known or Record(kind=HEARTBEATS.name, id=self._id, state=state)
            await transaction.put(record.replace(state=state, doc=msgspec.to_builtins(heartbeat)))

        await run_transaction(self._bus, act)


class MemberHeartbeatWriter(HeartbeatWriter):
    """Writes the heartbeats of a role and of its current members, such as the Generals.

    A member that is not served gets no heartbeat, so that the Chamberlain reports it. The heartbeat of a removed member
    is ended.
    """

    def __init__(self, create: Callable[[str], HeartbeatWriter], role: str, members: Members) -> None:
        self._create = create
        self._role = create(role)
        self._members = members
        self._writers: dict[str, HeartbeatWriter] = {}

    async def beat(self, at: datetime) -> None:
        """Write a heartbeat of the role and of each member that it serves."""
        await self._role.beat(at)
        members = self._members()
        # A General with the name of a role must not hide the silence of that role.
        for name in (name for name, is_served in members.items() if is_served and name not in ROLES):
            self._writers[name] = self._writers.get(name) or self._create(name)
            await self._writers[name].beat(at)
        for name in self._writers.keys() - members.keys():
            await self._writers.pop(name).end()

    async def end(self) -> None:
        """End all heartbeats."""
        for writer in (self._role, *self._writers.values()):
            await writer.end()


def heartbeats_in_files(
    directory: Path, role: str, members: Members = dict
) -> Callable[[], AbstractAsyncContextManager[HeartbeatWriter]]:
    """Return a factory for writers to a directory."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[HeartbeatWriter]:
        yield MemberHeartbeatWriter(partial(FileHeartbeatWriter, directory), role, members)

    return opened


def heartbeats_in_records(
    open_bus: Callable[[], AbstractAsyncContextManager[Bus]], role: str, members: Members = dict
) -> Callable[[], AbstractAsyncContextManager[HeartbeatWriter]]:
    """Return a factory for writers to records. Each writer opens its own bus, since a bus belongs to one event loop."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[HeartbeatWriter]:
        async with open_bus() as bus:
            yield MemberHeartbeatWriter(partial(RecordHeartbeatWriter, bus), role, members)

    return opened


class HeartbeatThread:
    """Writes heartbeats from its own thread while its context is open, so that a busy event loop does not look dead.

    No heartbeat is written while the loop is closed or has not responded for `stuck_after`.
    """

    def __init__(
        self,
        open_writer: Callable[[], AbstractAsyncContextManager[HeartbeatWriter]],
        *,
        every: timedelta = EVERY,
        stuck_after: timedelta = STUCK_AFTER,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._open_writer = open_writer
        self._every_seconds = every.total_seconds()
        self._stuck_seconds = stuck_after.total_seconds()
        self._clock = clock
        self._stopped = threading.Event()
        self._responded_at = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="kingdom-heart", daemon=True)

    async def __aenter__(self) -> Self:
        """Start the thread."""
        self._loop = asyncio.get_running_loop()
        self._note_response()
        self._thread.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Stop the thread and end the heartbeats."""
        self._stopped.set()
        # The thread may not be waiting yet, or may have ended.
        with suppress(RuntimeError):
            self._wake()
        await asyncio.to_thread(self._thread.join, _LAST_HEARTBEAT_SECONDS)

    def _note_response(self) -> None:
        self._responded_at = time.monotonic()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                asyncio.run(self._beat_until_stopped())
            except Exception as error:  # noqa: BLE001 - a running role must not look dead
                log_failure(_log, "cannot write a heartbeat, trying again", error, expected=(KingdomError, OSError))
                self._stopped.wait(self._every_seconds)

    async def _beat_until_stopped(self) -> None:
        stopped, own_loop = asyncio.Event(), asyncio.get_running_loop()
        self._wake = lambda: own_loop.call_soon_threadsafe(stopped.set)
        async with self._open_writer() as writer:
            while not self._stopped.is_set():
                if self._is_loop_alive():
                    await writer.beat(self._clock())
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._every_seconds):
                        await stopped.wait()
            await writer.end()

    def _is_loop_alive(self) -> bool:
        """Return whether the role's event loop still responds, and ask it to respond again."""
        if self._loop is None or self._loop.is_closed():
            return False
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._note_response)
        return time.monotonic() - self._responded_at < self._stuck_seconds


async def list_heartbeats(transaction: Transaction) -> list[Heartbeat]:
    """Return the last heartbeat of each process that has a readable record."""
    records = [record async for record in each_record(transaction, CURRENT_HEARTBEATS)]
    return list(read_documents(records, Heartbeat))


async def last_heartbeats(transaction: Transaction, directory: Path | None) -> dict[str, datetime]:
    """Return the latest heartbeat of each role and each General. Processes that stopped on purpose are not included."""
    found = [(heartbeat.role, heartbeat.at) for heartbeat in await list_heartbeats(transaction)]
    if directory is not None:
        found += _file_heartbeats(directory)
    return dict(sorted(found, key=lambda heartbeat: heartbeat[1]))


async def forget_old_heartbeats(transaction: Transaction, now: datetime) -> None:
    """End the records of processes that died long ago if their role has newer heartbeats."""
    records = [record async for record in each_record(transaction, CURRENT_HEARTBEATS)]
    heartbeats = [(heartbeat, record) for record in records for heartbeat in read_documents([record], Heartbeat)]
    latest = {heartbeat.role: heartbeat.at for heartbeat, _ in sorted(heartbeats, key=lambda each: each[0].at)}
    for heartbeat, record in heartbeats:
        if heartbeat.at < latest[heartbeat.role] and now - heartbeat.at > _FORGOTTEN_AFTER:
            await transaction.put(record.replace(state=ENDED))


def _file(directory: Path, role: str) -> Path:
    return directory / "state" / role / "heartbeat"


def _file_heartbeats(directory: Path) -> list[tuple[str, datetime]]:
    found = []
    for path in (directory / "state").glob("*/heartbeat"):
        # The role may stop and delete its file at this moment.
        with suppress(FileNotFoundError):
            found.append((path.parent.name, datetime.fromtimestamp(path.stat().st_mtime, UTC)))
    return found
