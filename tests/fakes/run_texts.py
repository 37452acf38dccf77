"""Texts of runs in memory."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from kingdom.storage.run_texts import RunTexts, TextExtent, TextPiece


class MemoryTexts(RunTexts):
    """Texts in memory. If it `hangs`, it never finishes writing a transcript, like an unreachable database."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.texts: dict[tuple[str, str], list[TextPiece]] = defaultdict(list)
        self.waited = 0
        self._hangs = hangs

    async def append(self, run: str, name: str, pieces: Sequence[TextPiece]) -> int:
        if self._hangs and not name.startswith("diff/"):
            self.waited += 1
            await asyncio.Event().wait()
        text = self.texts[run, name]
        if not text or text[-1].end <= pieces[0].start:
            text.extend(pieces)
        return text[-1].end

    async def extents(self, run: str) -> dict[str, TextExtent]:
        found = {name: text for (of, name), text in self.texts.items() if of == run and text}
        return {
            name: TextExtent(start=text[0].start, end=text[-1].end, is_cut=text[-1].is_cut)
            for name, text in found.items()
        }

    async def read(self, run: str, name: str, after: int, limit: int) -> list[TextPiece]:
        return [piece for piece in self.texts[run, name] if piece.end > after][:limit]
