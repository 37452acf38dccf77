"""Which store a command uses."""

from pathlib import Path

import pytest

from kingdom.cli.command import Call, _settings
from kingdom.cli.output import Output
from kingdom.settings import DEFAULT_URL


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of its own, in which nobody has named a store."""
    monkeypatch.chdir(tmp_path)
    for name in ("KINGDOM_DATABASE_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_without_a_word_it_is_the_default() -> None:
    assert _settings().database_url == DEFAULT_URL


def test_the_file_of_settings_of_the_directory_names_it(here: Path) -> None:
    (here / "kingdom.yaml").write_text("database_url: file:elsewhere\n")
    assert _settings().database_url == "file:elsewhere"


def test_a_file_that_is_named_counts_more_than_that_of_the_directory(here: Path) -> None:
    (here / "kingdom.yaml").write_text("database_url: file:elsewhere\n")
    call = Call(_settings(), Output(json=False))
    assert call.in_realm("file:named").settings.database_url == "file:named"


def test_a_person_who_names_a_store_counts_more_than_any_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "kingdom.yaml").write_text("database_url: file:elsewhere\n")
    asked = Call(_settings(database_url=DEFAULT_URL), Output(json=False))
    assert asked.in_realm("file:named").settings.database_url == DEFAULT_URL
    monkeypatch.setenv("KINGDOM_DATABASE_URL", "file:mine")
    assert Call(_settings(), Output(json=False)).in_realm("file:named").settings.database_url == "file:mine"
