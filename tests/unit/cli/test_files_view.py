import os
from pathlib import Path

from rich.console import Console

from kingdom.cli.attach.files_view import changed_files, files_view


def test_files_are_listed_latest_first_without_links_and_without_files_of_git(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("x")
    top = tmp_path / "top"
    for number, name in enumerate(["a.txt", "deep/b.txt", ".git/index", "c.txt"]):
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x" * 2000)
        os.utime(path, (number, number))
    (top / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(top / "pipe")
    files = changed_files(top, 10)
    assert [file.path for file in files] == ["c.txt", "deep/b.txt", "a.txt"]
    assert [file.path for file in changed_files(top, 1)] == ["c.txt"]
    console = Console(width=80)
    with console.capture() as screen:
        console.print(files_view(files, now=63.0))
    assert "1.0 min ago" in screen.get()
    assert "2 kB" in screen.get()


def test_a_folder_that_is_gone_has_no_files(tmp_path: Path) -> None:
    assert changed_files(tmp_path / "gone", 10) == []
