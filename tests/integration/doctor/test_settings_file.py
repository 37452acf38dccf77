import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kingdom.court.package_files import find_shipped_package, install_package
from tests.integration.doctor.scene import look, look_at, write_settings

GITHUB = {"logins": ["bot"], "api_url": "http://127.0.0.1:9"}


def install(directory: Path, name: str) -> Path:
    source = find_shipped_package(name)
    assert source is not None
    return Path(install_package(source, directory / "generals", replace=False).directory)


async def test_a_missing_settings_file_is_a_warning_with_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = await look_at("kingdom.yaml")
    assert (report.status, report.fix) == ("warn", "kingdom init")


@pytest.mark.parametrize("text", ["sentinel: [", "no_such_part: 1", "time_zone: Nowhere/Never", "- 1", "a: b: c", "\0"])
async def test_a_broken_file_is_reported_and_everything_else_is_checked(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kingdom.yaml"
    file.write_text(text)
    found = await look("kingdom.yaml", "python", "disk", "github", "store", config=file)
    assert (found["kingdom.yaml"].status, found["python"].status, found["github"].status) == ("fail", "ok", "skipped")
    assert str(file) in found["kingdom.yaml"].found
    assert "kingdom config check" in found["kingdom.yaml"].fix


async def test_a_named_settings_file_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    report = await look_at("kingdom.yaml", config=tmp_path / "absent.yaml")
    assert (report.status, "does not exist" in report.found) == ("fail", True)


async def test_a_broken_file_does_not_hide_the_store_that_it_names(tmp_path: Path) -> None:
    file = tmp_path / "kingdom.yaml"
    file.write_text("database_url: file:elsewhere\nno_such_part: 1\n")
    report = await look_at("directory", config=file)
    assert str(tmp_path / "elsewhere") in report.found


async def test_a_variable_that_is_not_set_is_reported_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OUR_TOKEN", raising=False)
    file = write_settings(tmp_path, sentinel={"github": {"token": "env:OUR_TOKEN", **GITHUB}})
    report = await look_at("kingdom.yaml", config=file)
    assert (report.status, "OUR_TOKEN, which is not set" in report.found) == ("fail", True)


async def test_a_secret_file_that_cannot_be_read_in_time_is_reported(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    file = write_settings(tmp_path, sentinel={"github": {"token": "file:pipe", **GITHUB}})
    report = await look_at("kingdom.yaml", config=file, reading_limit=timedelta(seconds=0.1))
    # Release the thread that still waits for the pipe.
    os.close(os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK))
    assert (report.status, "reading took longer than 0.1 s" in report.found) == ("fail", True)


async def test_a_secret_in_the_file_itself_is_reported_and_not_shown(tmp_path: Path) -> None:
    file = write_settings(tmp_path, sentinel={"github": {"token": "ghp_very_secret", **GITHUB}})
    report = await look_at("secrets", config=file)
    assert (report.status, report.found) == ("warn", f"sentinel.github.token is written in {file} itself")
    assert "very_secret" not in report.found + report.fix


@pytest.mark.parametrize(
    ("document", "reported"),
    [
        ({"soldiers": {"model": {"key": "very_secret"}}}, "soldiers.model.key is written in"),
        ({"database_url": "postgresql://anna:very_secret@127.0.0.1:9/x"}, "contains a password"),
        ({"database_url": "host=127.0.0.1 password=very_secret"}, "contains a password"),
    ],
)
async def test_a_key_and_a_password_in_the_file_itself_are_reported_too(
    tmp_path: Path, document: dict[str, Any], reported: str
) -> None:
    report = await look_at("secrets", config=write_settings(tmp_path, **document))
    assert (report.status, reported in report.found) == ("warn", True)
    assert "very_secret" not in report.found + report.fix


async def test_a_file_with_a_secret_that_others_can_read_is_reported(tmp_path: Path) -> None:
    secret = tmp_path / "hook"
    secret.write_text("hush")
    secret.chmod(0o644)
    webhook = {"secrets": ["file:hook"]}
    (tmp_path / "token").write_text("t")
    (tmp_path / "token").chmod(0o600)
    file = write_settings(tmp_path, sentinel={"github": {"token": "file:token", "webhook": webhook, **GITHUB}})
    report = await look_at("secrets", config=file)
    assert (report.status, report.fix) == ("warn", f"chmod 600 {secret}")
    secret.chmod(0o600)
    assert (await look_at("secrets", config=file)).status == "ok"


async def test_a_general_that_accepts_events_of_strangers_is_reported(tmp_path: Path) -> None:
    install(tmp_path, "gen-pr")
    file = write_settings(tmp_path, generals="generals", sentinel={"github": {"token": "t", **GITHUB}})
    report = await look_at("generals", config=file)
    assert (report.status, "including those of strangers" in report.found) == ("fail", True)


async def test_a_realm_without_generals_and_a_realm_with_a_broken_general_are_reported(tmp_path: Path) -> None:
    file = write_settings(tmp_path)
    without_generals = await look_at("generals", config=file)
    assert (without_generals.status, without_generals.fix) == ("warn", "kingdom general install gen-hello")
    folder = install(tmp_path / "realm", "gen-hello")
    assert (await look_at("generals", config=file)).found == "gen-hello"
    (folder / "workflow.yaml").unlink()
    broken = await look_at("generals", config=file)
    assert (broken.status, "gen-hello is broken" in broken.found) == ("fail", True)


async def test_an_invalid_variable_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINGDOM_THROUGH_PGBOUNCER", "maybe")
    report = await look_at("environment")
    assert (report.status, "KINGDOM_THROUGH_PGBOUNCER is 'maybe'" in report.found) == ("fail", True)


async def test_a_variable_that_names_another_store_than_the_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_settings(tmp_path)
    assert (await look_at("environment", config=file)).status == "ok"
    monkeypatch.setenv("DATABASE_URL", f"file:{tmp_path / 'other'}")
    assert (await look_at("environment", config=file)).status == "ok"
    monkeypatch.setenv("KINGDOM_DATABASE_URL", f"file:{tmp_path / 'other'}")
    for broken in ("", "no_such_part: 1\n"):
        file.write_text(f"database_url: file:realm\n{broken}")
        report = await look_at("environment", config=file)
        assert (report.status, "names another store" in report.found) == ("warn", True)
    file.write_text("time_zone: UTC\n")
    assert (await look_at("environment", config=file)).status == "ok"
