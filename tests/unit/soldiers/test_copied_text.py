"""Pieces of transcripts: secrets are gone before the text is cut, wherever it is cut."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kingdom.soldiers.agents.transcript import append_entry, parse_page, read_entries
from kingdom.soldiers.redaction import REDACTED, Redaction
from kingdom.soldiers.transcripts import copied_text
from kingdom.soldiers.transcripts.copied_text import cut_into_pieces, read_lines, redact_lines

PHRASE = "correct horse/battery"
TOKEN = "ghp_" + "a1B2" * 9
REDACTION = Redaction([PHRASE])
LINES = (
    b'{"type": "said", "text": "I use correct horse/battery and then correct%20horse%2Fbattery"}\n'
    b'{"type": "output", "text": "token ' + TOKEN.encode() + b" \xc3\xa9\\n" + PHRASE.encode() + b'"}\n'
    b'{"type": "said", "text": "nothing"}\n'
)
ANY_SPELLING = (PHRASE, "correct%20horse%2Fbattery", TOKEN)


def pieces_of(data: bytes, size: int, room: int = 1 << 30) -> list[bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copied_text, "PIECE_BYTES", size)
        return [piece.content for piece in cut_into_pieces(data, 0, room)]


def leaks(pieces: list[bytes]) -> bool:
    text = b"".join(pieces).decode(errors="replace")
    return any(secret in text for secret in ANY_SPELLING)


def test_no_secret_is_left_wherever_the_text_is_cut() -> None:
    redacted = redact_lines(LINES, REDACTION)
    for size in range(1, len(LINES) + 1):
        pieces = pieces_of(redacted, size)
        assert max(map(len, pieces)) <= size
        assert b"".join(pieces) == redacted
        assert not leaks(pieces)
    # Redacting after the cut would leave the secrets that a cut divides.
    late = [[redact_lines(piece, REDACTION) for piece in pieces_of(LINES, size)] for size in range(1, len(LINES) + 1)]
    assert any(map(leaks, late))


def test_no_beginning_of_a_secret_is_left_where_a_run_has_no_more_room() -> None:
    for room in range(1, len(LINES)):
        kept = b"".join(pieces_of(redact_lines(LINES, REDACTION), 16, room))
        assert len(kept) == room
        assert b"correct ho" not in kept
        assert b"correct%20ho" not in kept
        assert b"ghp_a" not in kept


def test_the_redacted_lines_keep_their_offsets_and_stay_readable() -> None:
    redacted = redact_lines(LINES, REDACTION)
    assert len(redacted) == len(LINES)
    page = parse_page(redacted.splitlines(keepends=True), 0, 1 << 20)
    expected = parse_page(LINES.splitlines(keepends=True), 0, 1 << 20)
    assert page.ends == expected.ends
    assert [entry["text"].count(REDACTED) for entry in page.entries] == [2, 2, 0]
    assert page.entries[2] == expected.entries[2]


def test_a_line_whose_syntax_is_part_of_a_secret_is_blanked() -> None:
    line = b'{"text": "\\rk_live_0123456789abcdef"}\n'
    redacted = redact_lines(line, REDACTION)
    assert redacted == b" " * (len(line) - 1) + b"\n"


@given(st.lists(st.text(max_size=40), max_size=6), st.sampled_from(ANY_SPELLING), st.integers(1, 300), st.integers())
def test_a_secret_in_any_entry_is_gone_from_every_cut(texts: list[str], secret: str, size: int, place: int) -> None:
    texts.insert(place % (len(texts) + 1), f"a{secret} b")
    lines = b"".join(
        b'{"text": "' + text.encode(errors="ignore").translate(None, b'\\"\n\r').replace(b"\0", b"") + b'"}\n'
        for text in texts
    )
    redacted = redact_lines(lines, REDACTION)
    assert len(redacted) == len(lines)
    assert not leaks(pieces_of(redacted, size))


def test_only_whole_lines_are_read_and_a_long_line_in_full(tmp_path: Path) -> None:
    path = tmp_path / "soldier.json"
    assert read_lines(path, 0, at_most=10, line_max=1000) == b""
    append_entry(path, {"type": "said", "text": "x" * 100}, durable=False)
    first = path.read_bytes()
    with path.open("ab") as file:
        file.write(b'{"type": "sai')
    assert read_lines(path, 0, at_most=10, line_max=1000) == first
    assert read_lines(path, len(first), at_most=10, line_max=1000) == b""
    append_entry(path, {"type": "noted", "text": "y"}, durable=False)
    assert len(read_entries(path)) == 2
    assert first + read_lines(path, len(first), at_most=1000, line_max=1000) == path.read_bytes()


def test_a_line_that_does_not_fit_is_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "soldier.json"
    append_entry(path, {"type": "said", "text": "x" * 5000}, durable=False)
    assert read_lines(path, 0, at_most=100, line_max=1000) == path.read_bytes()[:1000]


def test_neither_a_link_nor_a_pipe_is_read(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"{}\n")
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(target)
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="symbolic"):
        read_lines(link, 0, at_most=10, line_max=10)
    assert read_lines(pipe, 0, at_most=10, line_max=10) == b""


def test_the_last_piece_that_fits_says_that_the_text_is_cut() -> None:
    whole = list(cut_into_pieces(b"x" * 10, 5, 11))
    assert [(piece.start, piece.end, piece.is_cut) for piece in whole] == [(5, 15, False)]
    assert [(piece.start, piece.end, piece.is_cut) for piece in cut_into_pieces(b"x" * 10, 5, 4)] == [(5, 9, True)]
