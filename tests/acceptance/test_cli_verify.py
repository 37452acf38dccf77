import psycopg
import pytest

from tests.acceptance.terminal import Terminal

PATIENCE_SECONDS = 200


@pytest.mark.timeout(PATIENCE_SECONDS + 60)
def test_verify_torments_a_throwaway_schema_and_prints_what_it_checked(terminal: Terminal, dsn: str) -> None:
    done = terminal.run("bus", "verify", "--seconds", "2", "--seed", "7", "--json", patience=PATIENCE_SECONDS)
    report = done.document
    assert report["ok"], report["details"]
    assert done.code == 0
    assert set(report) == {
        *("ok", "seed", "seconds", "drainedSeconds", "events", "actions", "faults", "findings", "details"),
    }
    assert report["seed"] == 7
    assert report["events"]["DONE"] > 0
    assert report["findings"]
    assert set(report["findings"].values()) == {0}
    assert {"atSeconds", "kind", "detail"} == set(report["faults"][0])
    with psycopg.connect(dsn) as connection:
        schemas = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'kingdom_%'").fetchall()
    assert schemas == []
