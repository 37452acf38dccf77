"""A store that is made for one verification and dropped after it: what may be done to it, and read of it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Literal

from kingdom.bus.port import Bus, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """How one event ended, or where it stands; `token` is the one that settled it, certain for what is DONE only."""

    event_id: str
    stream: str
    partition_key: str | None
    position: int
    status: Literal["PENDING", "PROCESSING", "DONE", "DEAD", "DISCARDED"]
    token: int
    error_code: str | None


class TrialStore(ABC):
    """The third port, for tormentors. Processes under test open their bus by `url` and `schema`."""

    # True where one process at a time writes: the holder of the lock can be stopped. Else connections can be cut.
    has_one_writer: ClassVar[bool]
    # No fault that hits the store itself lasts so long that a worker at work could not renew this.
    shortest_lease: ClassVar[timedelta]

    url: str
    # Where who only watches opens the bus: nothing is ever done to it.
    safe_url: str
    schema: str

    @abstractmethod
    async def create(self) -> None:
        """Make the empty store."""

    @abstractmethod
    async def drop(self) -> None:
        """Remove the store with everything in it."""

    @abstractmethod
    async def cut_connections(self, at_most: int) -> int:
        """Break connections of the processes under test; returns how many."""

    @abstractmethod
    def holders(self) -> list[int]:
        """Return the processes that keep all others from writing at this moment."""

    @abstractmethod
    async def unfinished(self) -> int:
        """Return how many events are neither done nor dead."""

    @abstractmethod
    async def broken_invariants(self) -> list[str]:
        """Return what is wrong inside the store at this moment, though nobody would see it from outside yet."""

    @abstractmethod
    async def events(self) -> list[StoredEvent]:
        """Return every event that is or was there."""

    @abstractmethod
    async def log_data(self, entry_type: str) -> list[Mapping[str, Any]]:
        """Return the data of all log entries of a type, in the order of their transactions."""

    @abstractmethod
    def lingering(self, bus: Bus, *, seconds: float, keep: bool) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction that lasts for a while after its writes, as a caller's own may; `keep` commits it."""
