"""One private PostgreSQL cluster per test process, one fresh database per test, and each backend in turn."""

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

from bench.postgres import PrivateCluster
from kingdom.backends.postgres import migrate
from kingdom.log_output import configure_logs
from tests import tiers
from tests.contract.backends import BACKENDS, BackendUnderTest

pytest_plugins = ["tests.reruns"]
_numbers = itertools.count()
# All that happens in one house is played by one process: another would have to open the house again.
_HOUSES = "tests/acceptance/court/"
# So are files whose tests share something that takes seconds to make.
_SHARING = ("tests/integration/test_plans.py", "tests/unit/workflow/model/test_properties.py")


class _Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each test to the process that is free, and tests that share something costly to one process."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(_SHARING):
            return nodeid.partition("::")[0]
        if not nodeid.startswith(_HOUSES):
            return nodeid
        # There is one house per backend, and one more for real agents.
        return f"{'claude' in nodeid} {'postgres' in nodeid}"


def pytest_configure(config: pytest.Config) -> None:
    tiers.register(config)
    if hasattr(config, "workerinput"):
        # Where the kernel shares the processor between sessions, whatever else runs in this terminal has one share.
        with suppress(PermissionError):
            os.setsid()


def pytest_keyboard_interrupt() -> None:
    """Tell the workers and all that they have started, which the terminal no longer does."""
    for worker in psutil.Process().children():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGINT)


def pytest_collection() -> None:
    # Looking through all that is collected again and again would take a quarter of the time.
    gc.disable()


def pytest_collection_finish() -> None:
    # While the tests run it would take a twentieth.
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tiers.assign(items)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Scheduler(config, log)


@pytest.fixture(autouse=True)
def _quiet_logs() -> None:
    """Begin each test with quiet logs, whatever the one before it has run in this process."""
    configure_logs(json=True, level=logging.ERROR)


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    """Look for waste everywhere after each test: a command that it ran in this process has set everything aside."""
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


@pytest.fixture
def realm(tmp_path: Path) -> Path:
    """Where a store of files may be made."""
    return tmp_path / "realm"


@pytest.fixture
def dsn(cluster: PrivateCluster, migrated_template: str) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    yield cluster.create_database(name, template=migrated_template)
    cluster.drop_database(name)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[BackendUnderTest]:
    """Each registered backend in turn, on an empty store."""
    kind = BACKENDS[request.param]
    backend = kind(str(request.getfixturevalue(kind.place_fixture)))
    yield backend
    backend.close()
