"""One private PostgreSQL cluster per test process, one fresh database per test."""

import asyncio
import itertools
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.postgres import PrivateCluster
from kingdom.backends.postgres import migrate
from kingdom.bus.logs import configure_logs

_numbers = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def _quiet_logs() -> None:
    configure_logs(json=True, level=logging.ERROR)


@pytest.fixture(scope="session")
def cluster() -> Iterator[PrivateCluster]:
    with PrivateCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def migrated_template(cluster: PrivateCluster) -> str:
    asyncio.run(migrate(cluster.create_database("migrated")))
    return "migrated"


@pytest.fixture
def realm(tmp_path: Path) -> Path:
    """Where a store of files may be made."""
    return tmp_path / "realm"


@pytest.fixture
def dsn(cluster: PrivateCluster, migrated_template: str) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    yield cluster.create_database(name, template=migrated_template)
    cluster.drop_database(name)
