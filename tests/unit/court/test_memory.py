import threading
from pathlib import Path

import pytest

from kingdom.court.memory import (
    LOADED_BYTES_MAX,
    apply_memory_updates,
    earlier_files,
    load_memory,
    take_over_file,
)
from kingdom.errors import Misconfigured
from tests.patience import PATIENCE_SECONDS


def test_what_an_agent_learned_is_shown_to_later_ones_of_the_same_repository(tmp_path: Path) -> None:
    updates = [
        "Tests need a database.",
        {"about": "repo", "text": "Run make\n```check"},
        {"about": "decisions", "text": "Nothing is pushed on Fridays."},
    ]
    assert apply_memory_updates(tmp_path, updates, repo="acme/shop") == ()
    assert load_memory(tmp_path, "acme/shop") == (
        "# Patterns\n\n- Tests need a database.\n\n"
        "# Repository acme/shop\n\n- Run make '''check\n\n"
        "# Decisions\n\n- Nothing is pushed on Fridays.\n"
    )
    assert "Run make" not in load_memory(tmp_path, "acme/other")
    assert "Run make" not in load_memory(tmp_path, "")
    assert sorted(file.name for file in (tmp_path / "memory").iterdir()) == [
        "decisions.md",
        "patterns.md",
        "repository-acme.shop.md",
    ]


def test_repositories_with_one_slug_have_a_memory_each_and_one_repository_has_one_however_it_is_written(
    tmp_path: Path,
) -> None:
    apply_memory_updates(tmp_path, [{"about": "repo", "text": "The key is under the mat."}], repo="acme/web-app")
    assert "under the mat" not in load_memory(tmp_path, "acme-web/app")
    assert "under the mat" in load_memory(tmp_path, "Acme/Web-App")


def test_what_an_earlier_version_wrote_becomes_the_oldest_that_is_known(tmp_path: Path) -> None:
    apply_memory_updates(tmp_path, [{"about": "repo", "text": each} for each in ("both", "new")], repo="acme/shop")
    earlier = tmp_path / "memory" / "repo-acme-shop.md"
    earlier.write_text("- old\n- both\n")
    (tmp_path / "memory" / "repo-notes.md").write_text("named by the package itself\n")
    assert earlier_files(tmp_path, ["memory/repo-notes.md"]) == [earlier]
    take_over_file(tmp_path, earlier, "acme/shop")
    assert (tmp_path / "memory" / "repository-acme.shop.md").read_text() == "- old\n- both\n- new\n"
    assert not earlier.exists()


def test_a_package_without_memory_remembers_nothing(tmp_path: Path) -> None:
    assert load_memory(tmp_path, "acme/shop", ["notes.md"]) == ""
    assert apply_memory_updates(tmp_path, []) == ()
    assert list(tmp_path.iterdir()) == []


def test_the_same_updates_twice_change_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        apply_memory_updates(tmp_path, ["first", "second", "first"])
    apply_memory_updates(tmp_path, ["first"])
    assert (tmp_path / "memory" / "patterns.md").read_text() == "- second\n- first\n"


@pytest.mark.parametrize(("about", "bytes_max"), [("patterns", 5120), ("repo", 3072), ("decisions", 3072)])
def test_the_oldest_lines_go_when_a_file_is_full(tmp_path: Path, about: str, bytes_max: int) -> None:
    for number in range(0, 400, 10):
        updates = [{"about": about, "text": f"lesson {each:05d} ü"} for each in range(number, number + 10)]
        apply_memory_updates(tmp_path, updates, repo="acme/shop")
    (file,) = (tmp_path / "memory").iterdir()
    lines = file.read_text().splitlines()
    assert lines[-1] == "- lesson 00399 ü"
    assert lines[0] > "- lesson 00000"
    assert bytes_max - 18 < file.stat().st_size <= bytes_max


def test_what_is_no_update_is_refused_and_the_others_are_kept(tmp_path: Path) -> None:
    updates = [7, {"about": "../../etc/passwd", "text": "x"}, {"text": " \x07 "}, {"about": "repo", "text": "y"}, "z"]
    refused = apply_memory_updates(tmp_path, updates)
    assert len(refused) == 4
    assert "about" in refused[1]
    assert refused[3] == "there is no repository that this could be about: y"
    assert (tmp_path / "memory" / "patterns.md").read_text() == "- z\n"
    assert apply_memory_updates(tmp_path, "not a list") == ("updates of memory are a list, not not a list",)


def test_a_long_update_is_cut(tmp_path: Path) -> None:
    apply_memory_updates(tmp_path, ["x" * 10_000])
    assert (tmp_path / "memory" / "patterns.md").read_text() == f"- {'x' * 500}\n"


def test_more_files_of_the_package_are_shown_as_far_as_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "style.md").write_text("Short sentences.\n")
    (tmp_path / "long.md").write_text("".join(f"line {number}\n" for number in range(20_000)))
    shown = load_memory(tmp_path, "", ["style.md", "long.md"])
    assert shown.startswith("# style.md\n\nShort sentences.\n\n# long.md\n\nline ")
    assert shown.endswith("line 19999\n")
    assert LOADED_BYTES_MAX - 20 < len(shown.encode()) <= LOADED_BYTES_MAX


def test_memory_stays_inside_the_package(tmp_path: Path) -> None:
    package, outside = tmp_path / "gen-x", tmp_path / "outside"
    package.mkdir()
    outside.mkdir()
    (outside / "secret.md").write_text("secret")
    with pytest.raises(Misconfigured, match="leads out of the package"):
        load_memory(package, "", ["../outside/secret.md"])
    (package / "memory").symlink_to(outside)
    with pytest.raises(Misconfigured, match="leads out of the package"):
        apply_memory_updates(package, ["x"])
    assert [file.name for file in outside.iterdir()] == ["secret.md"]


def test_a_linked_file_is_replaced_and_what_it_led_to_stays(tmp_path: Path) -> None:
    (tmp_path / "kept.md").write_text("- old\n")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "patterns.md").symlink_to(tmp_path / "kept.md")
    apply_memory_updates(tmp_path, ["new"])
    assert (tmp_path / "kept.md").read_text() == "- old\n"
    assert (tmp_path / "memory" / "patterns.md").read_text() == "- old\n- new\n"


def test_many_who_learn_at_once_lose_nothing(tmp_path: Path) -> None:
    def learn(who: int) -> None:
        for number in range(10):
            apply_memory_updates(tmp_path, [f"{who}.{number}"])

    threads = [threading.Thread(target=learn, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    lines = (tmp_path / "memory" / "patterns.md").read_text().splitlines()
    assert sorted(lines) == sorted(f"- {who}.{number}" for who in range(8) for number in range(10))
