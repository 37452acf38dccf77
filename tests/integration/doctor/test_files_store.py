import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from kingdom.bootstrap import open_bus
from kingdom.bus.stream import Topology
from kingdom.clock import utc_now
from kingdom.court.heartbeat import FileHeartbeatWriter
from tests.integration.doctor.scene import look, look_at, write_settings
from tests.integration.doctor.test_machine import limited
from tests.integration.test_files_lock import holder

NAMES = ("environment", "file-system", "disk", "lock", "leases", "store", "migrations", "roles", "database-version")
CLAIM_AND_DIE = """
import asyncio, os, signal, sys
from kingdom.bootstrap import open_bus
from kingdom.bus import Envelope, Stream, Topology

async def main():
    orders = Stream(name="orders", subscribes=frozenset({"OrderPlaced"}))
    async with open_bus(sys.argv[1], Topology([orders])) as bus:
        async with bus.transaction() as transaction:
            await transaction.publish(Envelope(type="OrderPlaced", payload={}))
        assert len(await bus.claim("orders", 1, "worker")) == 1
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture
async def store(realm: Path) -> str:
    """A store in which nothing has happened yet."""
    async with open_bus(f"file:{realm}", Topology(())):
        return f"file:{realm}"


@contextmanager
def stopped(process: subprocess.Popen[str]) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    yield


async def test_a_used_store_is_healthy_and_the_check_leaves_nothing(store: str, realm: Path) -> None:
    before = sorted(realm.rglob("*"))
    names = ("directory", "disk", "lock", "leases", "store")
    assert {name: report.status for name, report in (await look(*names, url=store)).items()} == dict.fromkeys(
        names, "ok"
    )
    assert (await look_at("file-system", url=store)).status in ("ok", "warn")
    assert sorted(realm.rglob("*")) == before


async def test_a_missing_store_is_healthy_and_not_created(realm: Path) -> None:
    found = await look("directory", "lock", "leases", "store", url=f"file:{realm}")
    assert {report.status for report in found.values()} == {"ok"}
    assert not realm.exists()


async def test_a_file_in_the_place_of_the_directory_is_reported(realm: Path) -> None:
    realm.write_text("I was here first.")
    found = await look("directory", "store", url=f"file:{realm}")
    assert (found["directory"].status, found["store"].status) == ("fail", "skipped")
    assert found["directory"].fix == f"mv {realm} {realm}.old"


async def test_a_file_system_on_which_nothing_can_be_written_is_reported(store: str) -> None:
    with limited(resource.RLIMIT_FSIZE, 100):
        report = await look_at("file-system", url=store)
    assert (report.status, "File too large" in report.found) == ("fail", True)


async def test_a_full_disk_is_reported_by_the_thresholds_of_the_chamberlain(tmp_path: Path) -> None:
    def health(**percents: float) -> Path:
        return write_settings(tmp_path, chamberlain={"health": percents})

    full = await look_at("disk", config=health(disk_orange=0.001))
    assert (full.status, "no new work starts" in full.found) == ("fail", True)
    assert (await look_at("disk", config=health(disk_yellow=0.001, disk_orange=100))).status == "warn"
    assert (await look_at("disk", config=health(disk_yellow=1000, disk_orange=1000))).status == "ok"


async def test_a_disk_that_does_not_answer_does_not_block_other_checks(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(os, "statvfs", lambda _: answers.wait(30))
    report = await look_at("disk", url=store, limit=timedelta(milliseconds=100))
    answers.set()
    assert (report.status, report.found) == ("fail", "this check took longer than 0.1 s")


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kingdom.backends.files.inspection.PATIENCE_SECONDS", 0.1)


@pytest.mark.usefixtures("_impatient")
async def test_a_lock_that_a_stopped_process_holds_is_reported_and_the_process_left_alone(
    store: str, realm: Path
) -> None:
    with holder(realm / "bus" / "lock") as process, stopped(process):
        found = await look("lock", "store", "roles", url=store)
        assert process.poll() is None
        assert (found["lock"].status, found["store"].status, found["roles"].status) == ("fail", "skipped", "skipped")
        assert f"process {process.pid} " in found["lock"].found
        assert "which is stopped" in found["lock"].found
        assert f"kill -KILL {process.pid}" in found["lock"].fix
    assert (await look_at("lock", url=store)).status == "ok"


@pytest.mark.usefixtures("_impatient")
async def test_a_lock_that_is_held_for_long_is_reported_with_its_holder(store: str, realm: Path) -> None:
    with holder(realm / "bus" / "lock") as process:
        report = await look_at("lock", url=store)
        assert (report.status, report.fix) == ("fail", f"find out what it does, and end it: kill {process.pid}")


async def test_a_lease_of_a_killed_process_is_reported(store: str) -> None:
    died = await asyncio.create_subprocess_exec(sys.executable, "-c", CLAIM_AND_DIE, store)
    assert await died.wait() == -signal.SIGKILL
    report = await look_at("leases", url=store)
    assert (
        report.status,
        "1 lease(s) belong to processes that have ended, such as one on the stream orders of" in report.found,
    ) == ("warn", True)
    assert report.fix.startswith("kingdom up")


async def test_a_store_of_another_machine_is_reported(store: str, realm: Path) -> None:
    (realm / "bus" / "host.json").write_text(json.dumps({"machine": "other", "name": "old-box"}))
    report = await look_at("store", url=store)
    assert (report.status, "belongs to the host old-box" in report.found) == ("fail", True)


async def test_an_import_that_never_ended_is_reported(store: str, realm: Path) -> None:
    (realm / "bus" / "import-unfinished").touch()
    report = await look_at("store", url=store)
    assert (report.status, "did not finish" in report.found) == ("fail", True)


@pytest.mark.parametrize("url", ["file://elsewhere/realm", "file:/", "mysql://host/kingdom"])
async def test_a_store_that_no_backend_knows_is_reported_once(url: str) -> None:
    found = await look(*NAMES, url=url)
    failed = [name for name in found if found[name].status == "fail"]
    assert failed == ["store"]


async def test_a_role_without_a_recent_heartbeat_is_reported(store: str, realm: Path) -> None:
    assert (await look_at("roles", url=store)).status == "skipped"
    await FileHeartbeatWriter(realm, "king").beat(utc_now())
    assert (await look_at("roles", url=store)).status == "ok"
    await FileHeartbeatWriter(realm, "envoy").beat(utc_now() - timedelta(hours=1))
    report = await look_at("roles", url=store)
    assert (report.status, "no heartbeat from envoy for 1 h" in report.found) == ("fail", True)
    assert "king" not in report.found


async def test_a_directory_of_soldiers_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("")
    report = await look_at("directory", config=write_settings(tmp_path, soldiers={"directory": "work/soldiers"}))
    assert (report.status, f"{tmp_path / 'work'} is not a directory" in report.found) == ("fail", True)


async def test_no_directory_is_advised_as_the_url_of_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/proc")
    report = await look_at("directory", url="postgresql://localhost/kingdom")
    assert (report.status, report.fix) == ("fail", "make /proc writable")
    report = await look_at("directory", url="file:realm")
    assert report.fix == "make /proc writable, or name another directory as database_url"


async def test_the_setting_of_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    report = await look_at("directory", config=write_settings(tmp_path, soldiers={"directory": "/proc/soldiers"}))
    assert (report.status, report.fix) == (
        "fail",
        "make /proc writable, or name another directory as soldiers.directory",
    )
