"""Where a transcript can be read: in its file on this machine, or from the copy in the store."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from io import BytesIO
from pathlib import Path

from kingdom.soldiers.agents.transcript import PAGE_BYTES, TranscriptPage, parse_page, read_page, tail_offset
from kingdom.soldiers.transcripts.copier import RUN_BYTES_MAX
from kingdom.storage.run_texts import RunTexts, TextExtent
from kingdom.workflow.model.run.work import SOLDIER_PREFIX

# A busy agent fills a page with a few pieces of 64 KiB. A slow agent writes many small pieces, so more are read then.
_FIRST_PIECES, _PIECES_AT_ONCE = 8, 128
_MEBIBYTE = 1 << 20


class TranscriptSource(ABC):
    """A transcript that is read by byte offset. Offsets are the same in a file and in its copy."""

    @abstractmethod
    async def read(self, after: int, at_most: int = PAGE_BYTES) -> TranscriptPage:
        """Return about `at_most` bytes of whole entries from an offset on; no entries if there are no more yet."""

    @abstractmethod
    async def size(self) -> int:
        """Return the offset after the last byte that can be read now."""

    @abstractmethod
    async def tail(self, size: int) -> int:
        """Return the offset of the first whole entry within the last `size` bytes."""

    @abstractmethod
    async def missing_parts(self, place: str) -> list[str]:
        """Return what cannot be read here, in words; `place` is where the whole transcript is."""


class TranscriptFile(TranscriptSource):
    """The file of a transcript on this machine. It need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self, after: int, at_most: int = PAGE_BYTES) -> TranscriptPage:
        """See `TranscriptSource.read`."""
        try:
            return await asyncio.to_thread(read_page, self._path, after, at_most=at_most)
        except FileNotFoundError:
            return TranscriptPage([], after, [])

    async def size(self) -> int:
        """See `TranscriptSource.size`."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    async def tail(self, size: int) -> int:
        """See `TranscriptSource.tail`."""
        try:
            return await asyncio.to_thread(tail_offset, self._path, size)
        except FileNotFoundError:
            return 0

    async def missing_parts(self, place: str) -> list[str]:
        """See `TranscriptSource.missing_parts`."""
        del place
        return []


class StoredTranscript(TranscriptSource):
    """The copy of a transcript in the store."""

    def __init__(self, texts: RunTexts, run: str, soldier: str) -> None:
        self._texts = texts
        self._run = run
        self._soldier = soldier

    async def read(self, after: int, at_most: int = PAGE_BYTES) -> TranscriptPage:
        """See `TranscriptSource.read`."""
        start, data = await self._read_bytes(after, at_most)
        page = await asyncio.to_thread(parse_page, BytesIO(data), start, at_most)
        return page if page.next_offset > start else TranscriptPage([], after, [])

    async def size(self) -> int:
        """See `TranscriptSource.size`."""
        extent = (await self._texts.extents(self._run)).get(self._soldier)
        return extent.end if extent else 0

    async def tail(self, size: int) -> int:
        """See `TranscriptSource.tail`."""
        start = await self.size() - size
        if start <= 0:
            return 0
        # The byte before shows whether an entry begins exactly at `start`.
        begin, data = await self._read_bytes(start - 1, 1)
        return begin + data.find(b"\n") + 1

    async def missing_parts(self, place: str) -> list[str]:
        """See `TranscriptSource.missing_parts`."""
        extents = await self._texts.extents(self._run)
        own = extents.get(self._soldier)
        words = []
        if own and own.start:
            words.append(f"The first {own.start} bytes are no longer in the store")
        if is_full(extents):
            size = RUN_BYTES_MAX // _MEBIBYTE
            words.append(f"The store keeps at most {size} MiB of a run's transcripts; the rest is on {place}")
        return words

    async def _read_bytes(self, after: int, at_most: int) -> tuple[int, bytes]:
        """Return about `at_most` bytes and their offset. The bytes contain at least one whole line, if there is one.

        If the pieces are small, fewer bytes are returned, so that a page usually costs two statements.
        """
        start, end, data, limit = after, after, bytearray(), _FIRST_PIECES
        while True:
            pieces = await self._texts.read(self._run, self._soldier, end, limit)
            for piece in pieces:
                if piece.start > end:
                    # Earlier pieces are older than their retention.
                    start, end = piece.start, piece.start
                    data.clear()
                data += piece.content[end - piece.start :]
                end = piece.end
            is_enough = len(data) >= at_most or limit == _PIECES_AT_ONCE
            if len(pieces) < limit or (is_enough and b"\n" in data):
                return start, bytes(data)
            limit = _PIECES_AT_ONCE


def is_full(extents: dict[str, TextExtent]) -> bool:
    """Return whether the store keeps no more transcripts of a run."""
    return any(each.is_cut for name, each in extents.items() if name.startswith(SOLDIER_PREFIX))


async def follow_pages(
    source: TranscriptSource, after: int, is_over: Callable[[], Awaitable[bool]], *, every: float
) -> AsyncIterator[TranscriptPage]:
    """Yield the pages of a transcript from an offset on, until it is over and everything was read."""
    while True:
        # The last entries are readable before the run ends, so reading them after this check misses none.
        over = await is_over()
        while (page := await source.read(after)).next_offset > after:
            after = page.next_offset
            yield page
        if over:
            return
        await asyncio.sleep(every)
