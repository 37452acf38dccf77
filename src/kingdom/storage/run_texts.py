"""The interface for texts of runs that hosts copy to the store, so that every machine can read them.

A text is the transcript of a session or the diff of a checkpoint. Only a store that several hosts share keeps copies.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPiece:
    """A part of a text, which begins at the byte `start`. `is_cut` means that the rest of the text is not stored."""

    start: int
    content: bytes
    is_cut: bool = False

    @property
    def end(self) -> int:
        """Return the offset after this piece."""
        return self.start + len(self.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextExtent:
    """The stored range of a text. It begins after 0 if the first pieces are older than their retention."""

    start: int
    end: int
    is_cut: bool


class RunTexts(ABC):
    """Append-only texts of runs, in pieces. Each text has a name within its run."""

    @abstractmethod
    async def append(self, run: str, name: str, pieces: Sequence[TextPiece]) -> int:
        """Append consecutive pieces, all or none, and return the offset after the last stored piece of the text.

        If the first piece begins before this offset, nothing is written, so writing again has no effect.
        """

    @abstractmethod
    async def extents(self, run: str) -> dict[str, TextExtent]:
        """Return the stored range of each text of a run."""

    @abstractmethod
    async def read(self, run: str, name: str, after: int, limit: int) -> list[TextPiece]:
        """Return up to `limit` pieces of a text that end after an offset, in order."""
