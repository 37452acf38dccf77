import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from kingdom.cli.setup import doctor as cli_doctor
from kingdom.doctor.checks import all_checks
from tests.acceptance import limits
from tests.acceptance.sample_store import InProcessCli
from tests.acceptance.terminal import ROOT, Done
from tests.patience import PATIENCE_SECONDS

PAGE = ROOT / "docs" / "doctor.md"
# As root of its own namespace, a test can hide parts of the machine.
ALONE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-ec")


def doctor(
    directory: Path, *words: str, before: str = "", reading: float = PATIENCE_SECONDS, **environment: str
) -> Done:
    """Run the command in a directory; `before` runs first, `reading` is the time limit."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(("KINGDOM_", "PG"))}
    given.pop("DATABASE_URL", None)
    given["PYTHONPATH"] = os.pathsep.join(filter(None, (environment.pop("PYTHONPATH", ""), str(ROOT))))
    command = [*limits.command(reading=reading), "doctor", *words]
    if before:
        command = [*ALONE, f'{before}\nexec "$@"', "sh", *command]
    done = subprocess.run(
        command,
        cwd=directory,
        env={**given, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def found_by(done: Done) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in done.document["checks"]}


@pytest.fixture
def realm_directory(tmp_path: Path) -> Path:
    """A directory with minimal settings."""
    (tmp_path / "kingdom.yaml").write_text("database_url: file:realm\n")
    return tmp_path


@pytest.fixture
def alone() -> None:
    if not shutil.which("unshare") or subprocess.run([*ALONE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine does not allow user namespaces")


def test_the_json_output_has_the_documented_shape(realm_directory: Path) -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    shown = json.loads(example)
    done = doctor(realm_directory, "--json")
    assert (done.code, done.err) == (0, "")
    assert list(done.document) == list(shown)
    assert done.document["ok"] is True
    for check in done.document["checks"]:
        assert list(check) == list(shown["checks"][0])
        assert check["status"] in ("ok", "warn", "skipped")
        assert bool(check["fix"]) == (check["status"] == "warn")
        assert isinstance(check["seconds"], float)
    assert [check["name"] for check in done.document["checks"]] == [check.name for check in all_checks()]
    assert not (realm_directory / "realm").exists()


def test_a_person_reads_what_was_found_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "kingdom.yaml").write_text("database_url: file:realm\nsentinel: {gitlab: {}}\n")
    done = doctor(tmp_path)
    assert done.code == 1
    assert re.search(r"^ok +python +3\.", done.out, re.MULTILINE)
    assert re.search(r"^fail +kingdom\.yaml +kingdom\.yaml:2: sentinel\.gitlab: unknown field", done.out, re.MULTILINE)
    assert "→ correct it, then: kingdom config check kingdom.yaml" in done.out
    assert re.search(r"^skipped github, .*: not configured in kingdom.yaml", done.out, re.MULTILINE)
    assert re.search(r"^1 problem, \d warnings?\.$", done.out, re.MULTILINE)


def test_the_doctor_works_with_settings_that_stop_other_commands(tmp_path: Path) -> None:
    (tmp_path / "kingdom.yaml").write_text("database_url: env:NOT_SET_AT_ALL\n")
    done = doctor(tmp_path, "--json", KINGDOM_THROUGH_PGBOUNCER="maybe")
    assert done.code == 1
    found = found_by(done)
    assert (found["environment"]["status"], found["kingdom.yaml"]["status"]) == ("fail", "fail")
    assert (found["python"]["status"], found["store"]["status"]) == ("ok", "ok")


def test_a_secret_file_that_blocks_does_not_block_the_doctor(realm_directory: Path) -> None:
    os.mkfifo(realm_directory / "pipe")
    github = {"token": "file:pipe", "logins": ["bot"]}
    (realm_directory / "kingdom.yaml").write_text(yaml.safe_dump({"sentinel": {"github": github}}))
    done = doctor(realm_directory, "--json", reading=0.1)
    assert (done.code, found_by(done)["kingdom.yaml"]["status"]) == (1, "fail")


def test_extras_that_are_not_installed_are_reported(realm_directory: Path) -> None:
    for name in ("psycopg", "psycopg_pool", "slack_bolt", "slack_sdk"):
        absent = realm_directory / "shadow" / name
        absent.mkdir(parents=True)
        (absent / "__init__.py").write_text(f"raise ModuleNotFoundError('No module named {name}', name='{name}')\n")
    slack = {"bot_token": "t", "base_url": "http://127.0.0.1:9/api/"}
    (realm_directory / "kingdom.yaml").write_text(yaml.safe_dump({"envoy": {"slack": slack}}))
    url = "postgresql://127.0.0.1:9/kingdom"
    done = doctor(realm_directory, "--json", "--database-url", url, PYTHONPATH=str(realm_directory / "shadow"))
    found = found_by(done)
    assert (done.code, found["store"]["status"], found["slack-bot"]["status"]) == (1, "fail", "fail")
    assert found["store"]["fix"] == "pip install 'kingdom[postgres]'"
    assert found["slack-bot"]["fix"] == "pip install 'kingdom[slack]'"


def test_the_command_also_checks_a_database(cli_on_database: InProcessCli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, unhurried in limits.unhurried_doctor().items():
        monkeypatch.setattr(cli_doctor, name, unhurried)
    done = cli_on_database("doctor", "--json")
    found = found_by(done)
    assert (found["store"]["status"], found["migrations"]["status"]) == ("ok", "ok")
    unknown = cli_on_database("doctor", "--json", "--schema", "absent")
    assert (unknown.code, found_by(unknown)["migrations"]["fix"]) == (1, "kingdom bus migrate")


@pytest.mark.usefixtures("alone")
def test_a_read_only_directory_is_reported(realm_directory: Path) -> None:
    (realm_directory / "realm").mkdir()
    done = doctor(realm_directory, "--json", before="mount -t tmpfs -o ro none realm")
    found = found_by(done)
    assert (done.code, found["directory"]["status"], found["store"]["status"]) == (1, "fail", "skipped")
    assert "Read-only file system" in found["directory"]["found"]
    assert "name another directory as database_url" in found["directory"]["fix"]


@pytest.mark.usefixtures("alone")
def test_a_full_disk_is_reported(realm_directory: Path) -> None:
    (realm_directory / "realm").mkdir()
    fill = "mount -t tmpfs -o size=1m none realm\nhead -c 1044480 /dev/zero > realm/filling"
    done = doctor(realm_directory, "--json", before=fill)
    disk = found_by(done)["disk"]
    assert (done.code, disk["status"]) == (1, "fail")
    assert "no new work starts" in disk["found"]


@pytest.mark.usefixtures("alone")
def test_used_up_inotify_instances_are_reported(realm_directory: Path) -> None:
    done = doctor(realm_directory, "--json", before="echo 0 > /proc/sys/user/max_inotify_instances")
    inotify = found_by(done)["inotify"]
    assert (done.code, inotify["status"]) == (1, "fail")
    assert inotify["fix"].startswith("sudo sysctl fs.inotify.max_user_instances=")


def test_the_page_lists_all_checks_in_the_order_of_the_doctor() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`([\w.-]+)`", row.split("|")[1])]
    assert names == [check.name for check in all_checks()]
