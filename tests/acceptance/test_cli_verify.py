from pathlib import Path
from typing import Any

import psycopg

from kingdom.cli.reference.shapes import every_shape
from tests.acceptance.json_commands import ShapeChecker
from tests.acceptance.terminal import Terminal


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
