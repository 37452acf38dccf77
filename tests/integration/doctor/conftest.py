"""Remove the variables of the test machine that name a store."""

import pytest


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KINGDOM_DATABASE_URL", "DATABASE_URL", "KINGDOM_SCHEMA", "KINGDOM_THROUGH_PGBOUNCER"):
        monkeypatch.delenv(name, raising=False)
