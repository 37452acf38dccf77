"""Reading, writing and listing files that agents can change, and what is refused."""

import io
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kingdom.errors import ProgramFailed
from kingdom.soldiers.files.agent_files import AgentFile, find_files, list_files_below


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("secret")
    return outside


@pytest.mark.parametrize("name", ["", ".", "..", "../outside/file", "folder/../../outside/file", "/etc/passwd"])
def test_a_name_outside_of_the_folder_is_refused(root: Path, outside: Path, name: str) -> None:
    (root / "folder").mkdir()
    file = AgentFile(root, name)
    acts: list[Callable[[], object]] = [
        lambda: file.read(100),
        lambda: file.write("x"),
        file.remove,
        lambda: file.link_to(outside),
        file.make_folder,
    ]
    for act in acts:
        with pytest.raises(ProgramFailed, match="is not a path below"):
            act()
    assert (outside / "file").read_text() == "secret"


def test_a_file_longer_than_the_limit_is_not_read(root: Path) -> None:
    (root / "file").write_text("12345")
    assert AgentFile(root, "file").read(5) == b"12345"
    assert AgentFile(root, "file").read(4) is None
    assert AgentFile(root, "file").read_end(2) == b"45"
    assert AgentFile(root, "file").read_end(9) == b"12345"
    os.truncate(root / "file", 1 << 40)
    assert AgentFile(root, "file").read(100) is None
    assert AgentFile(root, "file").read_end(3) == b"\0\0\0"


@pytest.mark.parametrize("kind", ["nothing", "folder", "pipe", "link", "link to nowhere", "folder that is a link"])
def test_only_a_regular_file_is_read(root: Path, outside: Path, kind: str) -> None:
    name = "file"
    match kind:
        case "folder":
            (root / name).mkdir()
        case "pipe":
            os.mkfifo(root / name)
        case "link":
            (root / name).symlink_to(outside / "file")
        case "link to nowhere":
            (root / name).symlink_to("nowhere")
        case "folder that is a link":
            name = "folder/file"
            (root / "folder").symlink_to(outside)
    file = AgentFile(root, name)
    assert file.read(100) is None
    assert file.read_end(100) is None
    assert file.info() is None
    assert file.is_free() is (kind == "nothing")


def test_a_root_that_is_a_link_has_no_files(root: Path, outside: Path) -> None:
    root.rmdir()
    root.symlink_to(outside)
    assert AgentFile(root, "file").read(100) is None
    with pytest.raises(ProgramFailed, match="could not be written"):
        AgentFile(root, "file").write("x")
    assert (outside / "file").read_text() == "secret"


def test_a_file_is_written_with_the_folders_above_it_and_replaces_a_link(root: Path, outside: Path) -> None:
    (root / "file").symlink_to(outside / "file")
    AgentFile(root, "file").write("own")
    AgentFile(root, "deep/er/file").write("own")
    assert not (root / "file").is_symlink()
    assert (root / "deep" / "er" / "file").read_text() == "own"
    assert sorted(path.name for path in root.iterdir()) == ["deep", "file"]
    assert (outside / "file").read_text() == "secret"


def test_a_file_below_a_link_is_not_written_and_the_error_names_the_file(root: Path, outside: Path) -> None:
    (root / "folder").symlink_to(outside)
    with pytest.raises(ProgramFailed, match=r"folder/new could not be written.*put something in its place"):
        AgentFile(root, "folder/new").write("x")
    assert [path.name for path in outside.iterdir()] == ["file"]


def test_a_copy_is_added_only_if_its_target_does_not_exist(root: Path, outside: Path) -> None:
    assert AgentFile(root, "folder/copy").add(io.BytesIO(b"copied"), 0o100640)
    assert (root / "folder" / "copy").read_text() == "copied"
    assert not stat.S_IMODE((root / "folder" / "copy").stat().st_mode) & 0o137
    (root / "link").symlink_to(outside / "new")
    (root / "elsewhere").symlink_to(outside)
    for name in ("folder/copy", "link", "elsewhere/new", "folder/copy/new"):
        assert not AgentFile(root, name).is_free()
        assert not AgentFile(root, name).add(io.BytesIO(b"other"), 0o600)
    assert (root / "folder" / "copy").read_text() == "copied"
    assert [path.name for path in outside.iterdir()] == ["file"]


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_a_file_in_the_place_of_a_folder_or_a_link_is_moved_aside(root: Path, outside: Path, kind: str) -> None:
    for name in ("folder", "link"):
        match kind:
            case "file":
                (root / name).write_text("mine")
            case "link":
                (root / name).symlink_to(outside)
            case "folder":
                (root / name).mkdir()
    AgentFile(root, "folder").make_folder()
    AgentFile(root, "link").link_to(root)
    assert (root / "folder").is_dir()
    assert not (root / "folder").is_symlink()
    assert (root / "link").readlink() == root
    # An existing folder is kept, and a link is replaced without any loss.
    kept = {"file": {"folder.found-1", "link.found-1"}, "link": set(), "folder": {"link.found-1"}}
    assert {path.name for path in root.iterdir()} == {"folder", "link"} | kept[kind]
    assert (outside / "file").exists()


def test_a_pattern_matches_regular_files_and_follows_no_link(root: Path, outside: Path) -> None:
    for name in ("a/main.txt", "b/main.txt", "b/other.txt", "c/d/main.txt"):
        AgentFile(root, f"top/{name}").write("x" * len(name))
    (root / "top" / "e").symlink_to(outside)
    (root / "top" / "a" / "file").symlink_to(outside / "file")
    assert sorted(found.file.name for found in find_files(root, "top/*/main.txt")) == [
        "top/a/main.txt",
        "top/b/main.txt",
    ]
    assert [found.size for found in find_files(root, "top/b/o*.txt")] == [len("b/other.txt")]
    assert find_files(root, "top/*/file") == []
    assert find_files(root, "gone/*/file") == []


def test_a_listing_of_files_is_limited_in_depth(root: Path, outside: Path) -> None:
    AgentFile(root, "file").write("own")
    (root / "link").symlink_to(outside)
    place = os.open(root, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("deep", dir_fd=place)
        inner = os.open("deep", os.O_RDONLY, dir_fd=place)
        os.close(os.open("file", os.O_CREAT, dir_fd=inner))
        os.close(place)
        place = inner
    os.close(place)
    found = [each.file.name for each in list_files_below(root, leaving_out=".git")]
    assert found[0] == "file"
    assert 10 < len(found) < 100
