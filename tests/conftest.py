"""Fixtures: one private PostgreSQL cluster per test process, one new database per test, and each backend."""

import asyncio
import gc
import itertools
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from bench.kafka.broker import PrivateKafka
from bench.postgres import PrivateCluster
from kingdom.backends.postgres import migrate
from kingdom.log_output import configure_logs
from tests import tiers
from tests.contract.backends import BACKENDS, BackendUnderTest

pytest_plugins = ["tests.reruns"]
_numbers = itertools.count()
# One process runs all of these tests, since each process would have to start its own court.
_COURTS = "tests/acceptance/court/"
# One process runs all of these tests, since each process would have to start a broker of its own.
_KAFKA = "tests/integration/kafka/"
# One process runs all tests of such a file, since they share a fixture that takes seconds.
_SHARING = ("tests/integration/test_plans.py", "tests/unit/workflow/model/test_properties.py")


class _Scheduler(LoadScopeScheduling):  # type: ignore[misc]  # its base class has no type hints
    """Gives each test to a free process, and tests that share an expensive fixture to one process."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(_KAFKA) or "postgres+kafka" in nodeid:
            return _KAFKA
        if nodeid.startswith(_SHARING):
            return nodeid.partition("::")[0]
        if not nodeid.startswith(_COURTS):
            return nodeid
        # There is one court per backend, and one more for real agents.
        return f"{'claude' in nodeid} {'postgres' in nodeid}"


def pytest_configure(config: pytest.Config) -> None:
    tiers.register(config)
    if hasattr(config, "workerinput"):
        # With autogroup scheduling, each worker then gets its own share of the processor.
        with suppress(PermissionError):
            os.setsid()


def pytest_keyboard_interrupt() -> None:
    """Send SIGINT to the workers and their children; the terminal does not, since they have their own sessions."""
    for worker in psutil.Process().children():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGINT)


def pytest_collection() -> None:
    # Garbage collection would take a quarter of the collection time.
    gc.disable()


def pytest_collection_finish() -> None:
    # With the default thresholds it would take a twentieth of the test time.
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tiers.assign(items)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Scheduler(config, log)


@pytest.fixture(autouse=True)
def _quiet_logs() -> Iterator[None]:
    """Reset the logs around each test: a command in this process may have sent them to a stream that is then closed."""
    configure_logs(json=True, level=logging.ERROR)
    yield
    configure_logs(json=True, level=logging.ERROR)


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    """Restore garbage collection after each test: a command in this process may have frozen all objects."""
    yield
    gc.unfreeze()
    gc.enable()


@pytest.fixture(scope="session")
def cluster() -> Iterator[PrivateCluster]:
    with PrivateCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def migrated_template(cluster: PrivateCluster) -> str:
    asyncio.run(migrate(cluster.create_database("migrated")))
    return "migrated"


@pytest.fixture(scope="session")
def broker() -> Iterator[PrivateKafka]:
    """One broker for all tests that neither kill nor restart it."""
    with PrivateKafka() as broker:
        yield broker


@pytest.fixture
def realm(tmp_path: Path) -> Path:
    """The directory for a file store, which does not exist yet."""
    return tmp_path / "realm"


@pytest.fixture
def dsn(cluster: PrivateCluster, migrated_template: str) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    yield cluster.create_database(name, template=migrated_template)
    cluster.drop_database(name)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[BackendUnderTest]:
    """Each registered backend, on an empty store."""
    kind = BACKENDS[request.param]
    backend = kind(str(request.getfixturevalue(kind.place_fixture)))
    yield backend
    backend.close()
