from pathlib import Path, PurePosixPath

import pytest

from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts.worktree_include import NAME, parse_patterns, read_patterns


def takes(text: str, path: str) -> bool:
    """Return whether the last pattern that matches a path includes it."""
    meant = [pattern for pattern in parse_patterns(text) if pattern.matches(PurePosixPath(path))]
    return bool(meant) and meant[-1].included


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (".env", ".env"),
        (".env", "deep/er/.env"),
        (".env*", "a/.env.local"),
        ("/config/*.yaml", "config/a.yaml"),
        ("config/secret.yaml", "config/secret.yaml"),
        ("certificates/", "certificates/a/b.pem"),
        ("certificates/", "a/certificates/b.pem"),
        ("**/fixtures/**/*.bin", "fixtures/a.bin"),
        ("**/fixtures/**/*.bin", "a/fixtures/b/c/d.bin"),
        ("a/**", "a/b/c"),
        ("# a comment\n\n  .env  \n", ".env"),
        ("!.env\n.env", ".env"),
    ],
)
def test_a_listed_file_is_copied(text: str, path: str) -> None:
    assert takes(text, path)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", ".env"),
        ("# .env", ".env"),
        (".env", ".environment"),
        ("/.env", "deep/.env"),
        ("config/*.yaml", "config/deep/a.yaml"),
        ("config/*.yaml", "other/config/a.yaml"),
        (".env*\n!.env.example", ".env.example"),
        ("a/**/b", "a/c"),
    ],
)
def test_an_unlisted_file_is_not_copied(text: str, path: str) -> None:
    assert not takes(text, path)


def test_a_hostile_pattern_is_matched_quickly() -> None:
    hostile = "**/" * 300 + "*a" * 300 + "b"
    (pattern,) = parse_patterns(hostile)
    assert not pattern.matches(PurePosixPath("/".join(["a" * 200] * 20)))


def test_a_checkout_without_the_file_or_with_a_link_in_its_place_requests_nothing(tmp_path: Path) -> None:
    assert read_patterns(tmp_path) == []
    (tmp_path / "elsewhere").write_text("*\n")
    (tmp_path / NAME).symlink_to(tmp_path / "elsewhere")
    assert read_patterns(tmp_path) == []


def test_a_list_that_is_too_long_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(".env\n" * 20_000)
    with pytest.raises(ProgramFailed, match=r"\.worktreeinclude has more than 64 kB"):
        read_patterns(tmp_path)
