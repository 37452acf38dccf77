"""A page of a stored transcript takes few statements and few bytes, whatever the size of its pieces."""

import pytest

from kingdom.soldiers.transcripts.sources import StoredTranscript
from kingdom.storage.run_texts import TextPiece
from tests.fakes.run_texts import MemoryTexts

PAGE_BYTES = 256 << 10


class CountedTexts(MemoryTexts):
    """Counts its statements, and the bytes that they return."""

    statements = 0
    size = 0

    async def read(self, run: str, name: str, after: int, limit: int) -> list[TextPiece]:
        found = await super().read(run, name, after, limit)
        self.statements += 1
        self.size += sum(len(piece.content) for piece in found)
        return found


async def stored_texts(line_bytes: int, pieces: int, lines_per_piece: int) -> CountedTexts:
    line = b'{"text": "' + b"x" * (line_bytes - 13) + b'"}\n'
    content, texts = line * lines_per_piece, CountedTexts()
    await texts.append(
        "wf-1", "soldier-1", [TextPiece(start=at * len(content), content=content) for at in range(pieces)]
    )
    return texts


@pytest.mark.parametrize(
    ("line_bytes", "pieces", "lines_per_piece"),
    [(1 << 10, 200, 64), (20, 5000, 1), (1000, 1, 1), (1 << 10, 8, 1)],
    ids=["a busy agent", "a slow agent", "one line", "as many pieces as are read first"],
)
async def test_a_page_costs_at_most_two_statements_and_the_pages_are_complete(
    line_bytes: int, pieces: int, lines_per_piece: int
) -> None:
    texts = await stored_texts(line_bytes, pieces, lines_per_piece)
    source, offset, entries = StoredTranscript(texts, "wf-1", "soldier-1"), 0, 0
    while True:
        texts.statements = texts.size = 0
        page = await source.read(offset, PAGE_BYTES)
        assert texts.statements <= 2
        # Twice the page at most, in pieces of 64 KiB.
        assert texts.size <= 2 * PAGE_BYTES
        if page.next_offset == offset:
            break
        offset, entries = page.next_offset, entries + len(page.entries)
    assert entries == pieces * lines_per_piece


async def test_a_line_of_many_pieces_is_read_to_its_end() -> None:
    texts = CountedTexts()
    line = b'{"text": "' + b"x" * 400 + b'"}\n'
    await texts.append("wf-1", "soldier-1", [TextPiece(start=at, content=line[at : at + 1]) for at in range(len(line))])
    page = await StoredTranscript(texts, "wf-1", "soldier-1").read(0, PAGE_BYTES)
    assert [entry["text"] for entry in page.entries] == ["x" * 400]
