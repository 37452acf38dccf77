from pathlib import Path

import pytest

from kingdom.soldiers.transcript import append_entry, read_entries, read_page


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "soldier-1-1.json"


@pytest.mark.parametrize("durable", [True, False])
def test_entries_come_back_in_their_order(path: Path, *, durable: bool) -> None:
    for number in range(3):
        append_entry(path, {"n": number, "text": "zwölf\nlines"}, durable=durable)
    assert read_entries(path) == [{"n": number, "text": "zwölf\nlines"} for number in range(3)]


def test_a_reader_goes_on_at_its_offset(path: Path) -> None:
    append_entry(path, {"n": 1})
    first = read_page(path)
    append_entry(path, {"n": 2})
    second = read_page(path, first.next_offset)
    assert (first.entries, second.entries) == ([{"n": 1}], [{"n": 2}])
    assert read_page(path, second.next_offset).entries == []


def test_a_page_ends_after_about_as_much_as_was_asked_for(path: Path) -> None:
    for number in range(10):
        append_entry(path, {"n": number, "text": "x" * 100})
    page = read_page(path, at_most=150)
    assert [entry["n"] for entry in page.entries] == [0, 1]
    assert [entry["n"] for entry in read_page(path, page.next_offset).entries] == list(range(2, 10))


def test_an_entry_longer_than_a_page_is_read_whole(path: Path) -> None:
    append_entry(path, {"text": "x" * 1000})
    assert read_page(path, at_most=10).entries == [{"text": "x" * 1000}]


def test_a_line_that_is_still_being_written_is_left_for_later(path: Path) -> None:
    append_entry(path, {"n": 1})
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(b'{"n": 2')
    assert read_page(path).next_offset == whole
    with path.open("ab") as file:
        file.write(b"}\n")
    assert read_page(path, whole).entries == [{"n": 2}]


def test_a_torn_line_does_not_swallow_the_next(path: Path) -> None:
    append_entry(path, {"n": 1})
    with path.open("ab") as file:
        file.write(b'{"n": 2, "te')
    append_entry(path, {"n": 3})
    assert read_entries(path) == [{"n": 1}, {"n": 3}]


@pytest.mark.parametrize("line", [b"[1]\n", b"\xff\xfe\n", b'{"text": "\xff"}\n', b"\n", b"nonsense\n"])
def test_a_line_that_holds_no_entry_is_passed_over(path: Path, line: bytes) -> None:
    path.write_bytes(b'{"n": 1}\n' + line + b'{"n": 2}\n')
    assert read_entries(path) == [{"n": 1}, {"n": 2}]


def test_a_missing_transcript_is_missing(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_entries(path)
