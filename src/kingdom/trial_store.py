"""The interface of a store that `kingdom bus verify` creates, damages, inspects and removes.

The interface is not in `kingdom.verify`, because the backends implement it, and they must not import that package.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Literal

from kingdom.bus.port import Bus, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """The state of one event. If the event is DONE, `token` is the token that settled it, if the store keeps it."""

    event_id: str
    stream: str
    partition_key: str | None
    position: int
    status: Literal["PENDING", "PROCESSING", "DONE", "DEAD", "DISCARDED"]
    token: int | None
    error_code: str | None


class TrialStore(ABC):
    """A store that the verification creates, damages and removes. The processes under test open `url` and `schema`."""

    # True if only one process at a time can write. The verification then stops the process that holds the lock, and
    # otherwise cuts connections.
    has_one_writer: ClassVar[bool]
    # A running worker can renew a lease of this length in time, despite every fault of the store itself.
    shortest_lease: ClassVar[timedelta]

    url: str
    # The URL of the same store for observers. Their connections are never cut.
    safe_url: str
    schema: str

    @abstractmethod
    async def create(self) -> None:
        """Create the empty store."""

    @abstractmethod
    async def drop(self) -> None:
        """Remove the store with everything in it."""

    @abstractmethod
    async def cut_connections(self, at_most: int) -> int:
        """Break connections of the processes under test, and return how many."""

    @abstractmethod
    def holders(self) -> list[int]:
        """Return the ids of the processes that hold the write lock now."""

    @abstractmethod
    async def unfinished(self) -> int:
        """Return the number of events that are neither done nor dead."""

    @abstractmethod
    async def broken_invariants(self) -> list[str]:
        """Return a description of each internal invariant of the store that does not hold now."""

    @abstractmethod
    async def events(self) -> list[StoredEvent]:
        """Return every event that is or was in the store."""

    @abstractmethod
    async def log_data(self, entry_type: str) -> list[Mapping[str, Any]]:
        """Return the data of all log entries of a type, in transaction order."""

    @abstractmethod
    def slow_transaction(self, bus: Bus, *, seconds: float, keep: bool) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction that stays open for some seconds after the block. Roll it back unless `keep` is true."""
