import signal
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from kingdom.cli.reference.shapes import every_shape
from kingdom.verify.history import read_history
from tests.acceptance.json_commands import ShapeChecker
from tests.acceptance.terminal import Terminal, eventually
from tests.patience import PATIENCE_SECONDS


def verified(terminal: Terminal, *words: str) -> dict[str, Any]:
    done = terminal.run("bus", "verify", "--seconds", "2", "--seed", "7", "--json", *words)
    report: dict[str, Any] = ShapeChecker(every_shape()).check("bus verify", done.out)
    assert report["ok"], report["details"]
    assert done.code == 0
    return report


def test_verify_runs_on_a_temporary_schema_and_prints_what_it_checked(terminal: Terminal, dsn: str) -> None:
    report = verified(terminal)
    assert report["seed"] == 7
    assert report["actions"]["accepted"] > 0
    assert report["events"]["DONE"] > 0
    assert report["findings"]
    assert set(report["findings"].values()) == {0}
    assert len(report["faults"]) > 0
    with psycopg.connect(dsn) as connection:
        schemas = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'kingdom_%'").fetchall()
    assert schemas == []


def test_verify_runs_on_a_temporary_directory_and_leaves_nothing_there(terminal: Terminal, tmp_path: Path) -> None:
    directory = tmp_path / "realm"
    report = verified(terminal, "--database-url", f"file:{directory}")
    assert report["events"]["DONE"] > 0
    assert len(report["faults"]) > 0
    assert not directory.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_verification_that_is_stopped_leaves_no_process_and_removes_its_store(
    terminal: Terminal, tmp_path: Path, number: signal.Signals
) -> None:
    directory, history = tmp_path / "realm", tmp_path / "history"
    words = ("bus", "verify", "--seconds", "600", "--database-url", f"file:{directory}", "--history", str(history))
    with terminal.start(*words) as verification:
        eventually(lambda: history.exists() and [each for each in read_history(history) if each.what == "published"])
        children = psutil.Process(verification.process.pid).children()
        verification.process.send_signal(number)
        ended = verification.ends()
    assert children
    assert psutil.wait_procs(children, PATIENCE_SECONDS)[1] == []
    assert (ended, directory.exists()) == (128 + number, False)
