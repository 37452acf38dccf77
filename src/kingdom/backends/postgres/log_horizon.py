"""How far the log can be read: below the entries of every open transaction."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class LogWriters:
    """A result of the query `log_horizon`: the last number, and the number that each open writer has announced.

    A writer gets only numbers above the one that it has announced. None means that it has announced no number: it uses
    an older version or plain SQL, or it will announce one soon.
    """

    server: datetime
    last: int
    announced: Mapping[str, int | None]


class LogHorizon:
    """The number up to which the log is complete: no entry at or below it appears later.

    Observations must be given in the order in which they were made.
    """

    def __init__(self) -> None:
        # None until all writers that had announced no number at the first observation have ended.
        self.sequence: int | None = None
        self._server: datetime | None = None
        # A number, and the writers that must end before the log is complete up to it.
        self._pending: tuple[int, frozenset[str]] | None = None

    @property
    def is_current(self) -> bool:
        """Return whether the horizon waits for no writer that has not announced a number."""
        return self._pending is None

    def observe(self, seen: LogWriters) -> None:
        """Advance the horizon as far as an observation allows."""
        if seen.server != self._server:
            # After a failover, the numbers and the writers are those of another server.
            self._server, self.sequence, self._pending = seen.server, None, None
        unknown = frozenset(writer for writer, number in seen.announced.items() if number is None)
        reached = min([seen.last, *(number for number in seen.announced.values() if number is not None)])
        if self._pending and not seen.announced.keys().isdisjoint(self._pending[1]):
            return
        if self._pending:
            self._advance(self._pending[0])
        self._pending = (reached, unknown) if unknown else None
        if not unknown:
            self._advance(reached)

    def _advance(self, sequence: int) -> None:
        self.sequence = max(self.sequence or 0, sequence)
