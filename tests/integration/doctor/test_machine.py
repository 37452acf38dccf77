import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from kingdom.court.chamberlain.health import CPU, DISK, MEMORY
from kingdom.court.chamberlain.sensor import MachineSensor
from kingdom.doctor import machine
from kingdom.doctor.machine import judge_python
from kingdom.doctor.programs import run_program
from tests.integration.doctor.scene import look_at, write_program, write_settings
from tests.integration.running import eventually
from tests.integration.soldiers.processes import MARK, cancel_while_it_starts, marked


@contextmanager
def limited(what: int, number: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))


async def test_a_machine_with_everything_is_well() -> None:
    for name in ("python", "git", "open-files", "clock"):
        assert (await look_at(name)).status == "ok"


def test_an_old_python_is_refused() -> None:
    result = judge_python((3, 10, 12))
    assert (result.status, "3.11 is needed" in result.found, "--python 3.11" in result.fix) == ("fail", True, True)


async def test_a_path_without_git_and_bubblewrap_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    git, bubblewrap = await look_at("git"), await look_at("bubblewrap")
    assert (git.status, bubblewrap.status) == ("fail", "fail")
    assert "not on PATH" in git.found
    assert "without a sandbox no agent is started" in bubblewrap.found
    assert ("git" in git.fix, "bubblewrap" in bubblewrap.fix) == (True, True)


async def test_a_git_that_is_too_old_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path, "git", "echo git version 2.20.1")
    monkeypatch.setenv("PATH", str(tmp_path))
    report = await look_at("git")
    assert (report.status, report.found) == ("fail", "2.20.1, and 2.29 is needed")


async def test_a_git_that_fails_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path, "git", "echo 'cannot open shared object file' >&2; exit 127")
    monkeypatch.setenv("PATH", str(tmp_path))
    report = await look_at("git")
    assert (report.status, "127: cannot open shared object file" in report.found) == ("fail", True)


async def test_a_git_that_hangs_is_reported_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = write_program(tmp_path, "git", "sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    report = await look_at("git", limit=timedelta(seconds=0.5))
    assert (report.status, report.found) == ("fail", "this check took longer than 0.5 s")

    async def is_gone() -> bool:
        return not any(str(program) in (each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]))

    await eventually(is_gone)


async def test_a_program_is_ended_even_if_its_start_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = uuid4().hex
    monkeypatch.setenv(MARK, mark)
    await cancel_while_it_starts(run_program("/bin/sh", "-c", "sleep 917; true"), mark, "sleep 917")
    assert marked(mark) == []


async def test_a_bubblewrap_that_cannot_create_namespaces_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(
        tmp_path,
        "bwrap",
        '[ "$1" = --version ] && exec echo bubblewrap 0.8.0\n'
        "echo 'bwrap: No permissions to create new namespace' >&2; exit 1",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    report = await look_at("bubblewrap")
    assert (report.status, "no agent can be started" in report.found) == ("fail", True)


async def test_a_sandbox_that_is_off_is_reported_with_bubblewrap_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = write_settings(tmp_path, soldiers={"sandbox": "off"})
    for path, status in ((os.environ["PATH"], "ok"), (str(tmp_path), "warn")):
        monkeypatch.setenv("PATH", path)
        sandbox, bubblewrap = await look_at("sandbox", config=off), await look_at("bubblewrap", config=off)
        assert (sandbox.status, bubblewrap.status) == ("warn", status)
        assert "WITHOUT A SANDBOX" in sandbox.found
        assert "soldiers.sandbox to strict" in sandbox.fix
    assert (await look_at("sandbox")).found == "strict, for every agent, setup script and check"


async def test_the_sandbox_is_skipped_if_the_settings_cannot_be_read(tmp_path: Path) -> None:
    (unread := tmp_path / "kingdom.yaml").write_text("soldiers: {sandbox: off}\n")
    found = await look_at("sandbox", config=unread)
    assert (found.status, "settings cannot be read" in found.found) == ("skipped", True)


async def test_few_open_files_are_reported() -> None:
    with limited(resource.RLIMIT_NOFILE, 512):
        report = await look_at("open-files")
    assert (report.status, report.found) == ("warn", "a process may open only 512 files")
    assert report.fix.startswith("ulimit -n ")


async def test_a_clock_that_was_never_set_is_reported() -> None:
    report = await look_at("clock", clock=lambda: datetime(1970, 1, 1, 0, 5, tzinfo=UTC))
    assert (report.status, "never set" in report.found) == ("fail", True)


@pytest.mark.parametrize(("orange", "status"), [(0.001, "warn"), (1000, "ok")])
async def test_a_machine_with_too_little_memory_for_new_work_is_reported(
    tmp_path: Path, orange: float, status: str
) -> None:
    health = {"yellow": 0.001, "orange": orange, "red": 1000}
    report = await look_at("load", config=write_settings(tmp_path, chamberlain={"health": health}))
    assert (report.status, "no new work starts" in report.found) == (status, status == "warn")
    assert ("chamberlain.health.orange" in report.fix) == (status == "warn")


async def test_busy_processors_are_reported_as_one_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class BusyMachine(MachineSensor):
        async def read(self) -> dict[str, float]:
            return {CPU: 97.0, MEMORY: 10.0, DISK: 99.0}

    monkeypatch.setattr(machine, "MachineSensor", BusyMachine)
    report = await look_at("load")
    assert (report.status, report.found) == (
        "warn",
        "cpu_percent: 97, memory_percent: 10: one run at a time starts while the machine is this busy",
    )
