"""The paths below a root, and the file names of ids."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kingdom.backends.files.tree.layout import StoreLayout, file_name, id_of_name, is_temporary_name
from kingdom.bus import RecordKind
from kingdom.errors import Misconfigured

LAYOUT = StoreLayout("/realm")
KEPT_LOGS = ["events-20261114.1.log", "events-20261114.log", "events-20261115.log"]
DAYS = ["20261114.jsonl", "20261115.jsonl"]
IDS = st.text(min_size=1, max_size=400) | st.text(alphabet="./-%~\\ aA\x00\n", min_size=1, max_size=300)


@given(IDS)
def test_any_id_becomes_one_plain_name(name: str) -> None:
    known = file_name(name)
    assert known.isascii()
    assert known.isprintable()
    assert 0 < len(known) <= 200
    assert "/" not in known
    assert known[0] not in ".-"
    assert Path(known).name == known


@given(IDS, IDS)
def test_no_two_ids_share_a_name(one: str, other: str) -> None:
    assert (file_name(one) == file_name(other)) == (one == other)


@given(IDS)
def test_the_name_contains_the_id_unless_it_had_to_be_shortened(name: str) -> None:
    reported = id_of_name(file_name(name))
    assert reported == name or (reported is None and len(name.encode("utf-8", "surrogatepass")) > 60)


@pytest.mark.parametrize("name", ["", "%FF", "%C3", "a%80b"])
def test_a_name_that_is_not_an_encoded_id_has_no_id(name: str) -> None:
    assert id_of_name(name) is None


def test_only_directories_are_dedup_scopes(tmp_path: Path) -> None:
    layout = StoreLayout(str(tmp_path))
    (tmp_path / "bus/once/mail").mkdir(parents=True)
    (tmp_path / "bus/once/%FF").mkdir()
    (tmp_path / "bus/once/.DS_Store").write_text("")
    assert layout.key_scopes() == {"mail": f"{tmp_path}/bus/once/mail"}


def test_only_plain_files_of_the_right_name_are_parts_of_the_log_and_days_of_the_archive(tmp_path: Path) -> None:
    layout = StoreLayout(str(tmp_path))
    done = tmp_path / "bus/streams/free/done"
    for directory, parts in ((tmp_path / "logs", KEPT_LOGS), (done, DAYS)):
        directory.mkdir(parents=True)
        for name in (*parts, "notes.txt", "events-.log", "events-²0261115.log", "20261115", f".{parts[0]}"):
            (directory / name).write_text("")
        (directory / f"{parts[0].replace('2026', '2025')}").mkdir()
        (directory / f"{parts[0].replace('2026', '2024')}").symlink_to("nowhere")
    assert [Path(path).name for path in layout.rotated_logs()] == KEPT_LOGS
    assert [Path(path).name for path in layout.archive_files("free")] == DAYS
    assert layout.archive_files("another") == []


def test_documented_ids_are_their_own_file_names() -> None:
    for name in ("evt-github-12345678", "evt-jira-QP-123-20260207100000", "task-20260207-001", "gen-pr"):
        assert file_name(name) == name


def test_two_unicode_forms_of_one_letter_have_different_names() -> None:
    forms = {file_name(unicodedata.normalize(form, "é")) for form in ("NFC", "NFD")}
    assert len(forms) == 2


@pytest.mark.parametrize("name", ["..", ".", "../../etc/passwd", "/etc/passwd", "a\x00b", ".hidden", "-rf", "a/b"])
def test_no_id_leads_out_of_its_directory(name: str) -> None:
    path = Path(LAYOUT.record("queue/events/pending", name))
    assert path.parent == Path("/realm/queue/events/pending")
    assert path.resolve().parent == path.parent


def test_an_empty_id_is_refused() -> None:
    with pytest.raises(Misconfigured, match="must not be empty"):
        file_name("")


@pytest.mark.parametrize("what", ["stream", "scope"])
def test_a_directory_name_that_is_too_long_to_be_reversible_is_refused(what: str) -> None:
    with pytest.raises(Misconfigured, match="too long"):
        LAYOUT.stream("x" * 300) if what == "stream" else LAYOUT.key_directory("x" * 300)


def test_records_and_keys_have_their_documented_paths() -> None:
    found = {
        LAYOUT.record("queue/events/pending", "evt-github-1"): "queue/events/pending/evt-github-1.json",
        LAYOUT.record("state/king", "task-seq"): "state/king/task-seq",
        LAYOUT.record("state/king", "msg-seq"): "state/king/msg-seq",
        LAYOUT.key_file("seen", "evt-github-1"): "state/sentinel/seen/evt-github-1",
        LAYOUT.log: "logs/events.log",
    }
    assert {path.removeprefix("/realm/") for path in found} == set(found.values())


@pytest.mark.parametrize(
    ("directories", "words"),
    [
        (("queue/a", "../b"), "no path below the root"),
        (("/etc",), "no path below the root"),
        (("a//b",), "no path below the root"),
        (("bus/mine",), "reserved for the bus"),
    ],
)
def test_a_kind_that_would_write_elsewhere_is_refused(directories: tuple[str, ...], words: str) -> None:
    kind = RecordKind(name="k", directories={str(number): each for number, each in enumerate(directories)})
    with pytest.raises(Misconfigured, match=words):
        LAYOUT.check_kinds([kind])


def test_two_kinds_cannot_share_a_directory_even_if_the_names_differ_in_case() -> None:
    kinds = [RecordKind(name=name, directories={"open": name}) for name in ("Jobs", "jobs")]
    with pytest.raises(Misconfigured, match="share the directory"):
        LAYOUT.check_kinds(kinds)


def test_files_of_editors_are_recognized() -> None:
    unfinished = [".tmp-evt-1.json", ".evt-1.json.swp", "evt-1.json~", "4913", "sedAbC123", "evt.tmp", "#evt#"]
    assert all(map(is_temporary_name, unfinished))
    assert not any(map(is_temporary_name, ["evt-1.json", "4913.json", "sedation.json", "tmp"]))
