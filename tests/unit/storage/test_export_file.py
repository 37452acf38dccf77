import errno
import gzip
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from kingdom.bus.envelope import Envelope
from kingdom.errors import Permanent
from kingdom.storage.export_file import new_export, read_header, read_items
from kingdom.storage.transfer import (
    AnyItem,
    BlockItem,
    DedupKeyItem,
    EventItem,
    ItemCounter,
    ItemCounts,
    LogEntryItem,
    Manifest,
    PauseItem,
    RecordItem,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
EVENT = EventItem(
    stream="line",
    position=7,
    ordered=True,
    envelope=Envelope(type="Step", partition_key="k", payload={"text": "ü\n", "n": 1.5}, occurred_at=NOW).to_wire(),
    status="DEAD",
    attempt=3,
    max_attempts=5,
    crash_count=1,
    token=11,
    created_at=NOW,
    processed_at=NOW,
    error_code="broken",
    error_message="line one\nline two",
    history=[{"what": "redriven", "attempts": 5}],
)
ITEMS: Sequence[AnyItem] = (
    EVENT,
    BlockItem(stream="line", key="k", blocked_by=7),
    RecordItem(
        kind="job",
        id="a/b",
        version=2,
        state="open",
        index_1=None,
        index_3="third",
        due_at=NOW,
        doc={"n": [1, None]},
        created_at=NOW,
        updated_at=NOW,
        ended_at=None,
    ),
    DedupKeyItem(scope="s", key="k", expires_at=NOW),
    PauseItem(stream="free", reason="r", actor="a", since=NOW),
    LogEntryItem(type="t", actor="a", data={}, at=NOW, trace_id="x", aggregate_type="", aggregate_id="", logged_at=NOW),
)


def manifest(items: Sequence[AnyItem] = ITEMS) -> Manifest:
    tally = ItemCounter()
    for item in items:
        tally.add(item)
    return Manifest(census=tally.counts, last_position=7, last_token=11)


def write(file: Path, items: Sequence[AnyItem] = ITEMS) -> Path:
    with new_export(file, "postgresql", manifest(items), NOW) as add:
        for item in items:
            add(item)
    return file


def refused(file: Path) -> str:
    with pytest.raises(Permanent) as refusal:
        list(read_items(file))
    return str(refusal.value)


@pytest.mark.parametrize("name", ["store.jsonl", "store.jsonl.gz"])
def test_a_written_export_is_read_back(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / name)
    assert tuple(read_items(file)) == tuple(ITEMS)
    header = read_header(file)
    assert (header.source, header.exported_at, header.manifest) == ("postgresql", NOW, manifest())


def test_every_line_is_json_that_people_can_read(tmp_path: Path) -> None:
    first, event, *_, last = map(msgspec.json.decode, write(tmp_path / "store.jsonl").read_bytes().splitlines())
    assert (first["format"], first["version"], first["from"]) == ("kingdom-storage", 1, "postgresql")
    assert (event["item"], event["maxAttempts"], event["envelope"]["type"]) == ("event", 5, "Step")
    assert (last["item"], last["census"]["deadEvents"]) == ("end", 1)


def test_an_export_whose_name_ends_with_gz_is_compressed(tmp_path: Path) -> None:
    plain, packed = write(tmp_path / "store.jsonl"), write(tmp_path / "store.jsonl.gz")
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()


def test_only_its_owner_may_read_an_export(tmp_path: Path) -> None:
    assert write(tmp_path / "store.jsonl").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["store.jsonl", "store.jsonl.gz"])
def test_an_export_that_was_cut_off_anywhere_is_refused(tmp_path: Path, name: str) -> None:
    whole = write(tmp_path / name).read_bytes()
    cut = tmp_path / f"cut-{name}"
    # Without its last line break, a plain file is still complete.
    for length in range(len(whole) - 1):
        cut.write_bytes(whole[:length])
        assert str(cut) in refused(cut)
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    assert "ends too early" in refused(cut)


@pytest.mark.parametrize("bit", [0x01, 0x80])
def test_an_export_with_any_changed_byte_is_refused(tmp_path: Path, bit: int) -> None:
    whole = write(tmp_path / "store.jsonl").read_bytes()
    changed = tmp_path / "changed.jsonl"
    for place in range(len(whole)):
        changed.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        refused(changed)


def test_an_export_with_a_valid_change_is_refused_by_its_digest(tmp_path: Path) -> None:
    file = write(tmp_path / "store.jsonl")
    file.write_bytes(file.read_bytes().replace(b'"maxAttempts":5', b'"maxAttempts":6'))
    assert "was changed after it was written" in refused(file)


@pytest.mark.parametrize("more", [b"\n", b'{"item":"pause"}\n'])
def test_anything_after_the_end_is_refused(tmp_path: Path, more: bytes) -> None:
    file = write(tmp_path / "store.jsonl")
    file.write_bytes(file.read_bytes() + more)
    assert "was changed" in refused(file)


def test_an_export_of_a_newer_version_says_what_to_do(tmp_path: Path) -> None:
    file = write(tmp_path / "store.jsonl")
    file.write_bytes(file.read_bytes().replace(b'"version":1', b'"version":2', 1))
    with pytest.raises(Permanent, match=r"format version 2.* or a newer one"):
        read_header(file)


@pytest.mark.parametrize("text", [b"", b"hello\n", b"{}\n", b'{"format":"other","version":1}\n', b"\xff\xfe\n"])
def test_a_file_that_is_not_an_export_is_reported(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "store.jsonl"
    file.write_bytes(text)
    with pytest.raises(Permanent, match="was not written by"):
        read_header(file)


def test_a_plain_file_with_a_compressed_name_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "store.jsonl.gz"
    file.write_bytes(b"hello")
    with pytest.raises(Permanent, match="is damaged"):
        read_header(file)


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "store.jsonl"
    file.write_text("precious")
    with pytest.raises(Permanent, match="already exists"):
        write(file)
    assert file.read_text() == "precious"


@pytest.fixture(params=["links", "no links"])
def filesystem(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no links":

        def refuse(*_: object) -> None:
            # The error of vfat.
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("filesystem")
def test_a_file_that_appears_during_the_export_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "store.jsonl"
    with pytest.raises(Permanent, match="already exists"), new_export(file, "files", manifest([]), NOW):
        file.write_text("precious")
    assert file.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.usefixtures("filesystem")
def test_a_finished_export_leaves_nothing_but_its_file(tmp_path: Path) -> None:
    file = write(tmp_path / "store.jsonl")
    assert tuple(read_items(file)) == tuple(ITEMS)
    assert list(tmp_path.iterdir()) == [file]
    assert file.stat().st_nlink == 1


def test_an_export_that_cannot_be_renamed_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    file = tmp_path / "store.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        patch.setattr(os, "rename", refuse)
        with pytest.raises(Permanent, match="Input/output error"):
            write(file)
    assert list(tmp_path.iterdir()) == []
    assert tuple(read_items(write(file))) == tuple(ITEMS)


def test_an_export_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def fail() -> None:
        with new_export(tmp_path / "store.jsonl", "files", manifest(), NOW) as add:
            add(EVENT)
            assert list(tmp_path.iterdir()) != []
            raise RuntimeError("the store went away")

    with pytest.raises(RuntimeError, match="went away"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_an_export_with_another_count_than_announced_leaves_no_file(tmp_path: Path) -> None:
    with (
        pytest.raises(Permanent, match="0 blocked keys instead of 1"),
        new_export(tmp_path / "store.jsonl", "files", manifest([EVENT, ITEMS[1]]), NOW) as add,
    ):
        add(EVENT)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match=r"nowhere/store\.jsonl cannot be used: No such file"):
        write(tmp_path / "nowhere" / "store.jsonl")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": "PENDING", "ordered": False, "processed_at": None}, "no due time"),
        ({"status": "PENDING", "due_at": NOW}, "which contradicts its processedAt"),
        ({"status": "DONE", "processed_at": None}, "which contradicts its processedAt"),
    ],
)
def test_an_event_that_contradicts_itself_cannot_be_made(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        msgspec.convert({**msgspec.to_builtins(EVENT), **_wire(changes)}, EventItem)


def _wire(changes: dict[str, object]) -> dict[str, object]:
    names = dict(zip(EventItem.__struct_fields__, EventItem.__struct_encode_fields__, strict=True))
    return {names[name]: value for name, value in changes.items()}


def test_item_counts_show_only_kinds_that_exist() -> None:
    assert str(ItemCounts(open_events=2, log_entries=1)) == "2 open events, 1 log entries"
    assert str(ItemCounts()) == "nothing"
    assert ItemCounts(records=1).difference(ItemCounts(records=1)) == ""
