"""Every sample of every earlier version, opened by this version, once per backend."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from bench.postgres import PrivateCluster
from kingdom.bootstrap import migrate
from kingdom.standins.github.application import build_github
from kingdom.standins.jira.application import build_jira
from kingdom.standins.server import RunningServer, start
from tests.compatibility.sample import FOLDER, STORE, Sample, restore, unpack
from tests.contract.backends import BACKENDS

_numbers = itertools.count()


@pytest.fixture(scope="session")
def restored(cluster: PrivateCluster) -> Callable[[Path], str]:
    """Return a function that restores a dump once and migrates it to this version."""

    @cache
    def once(dumped: Path) -> str:
        name = f"sample_{dumped.parent.name}"
        place = cluster.create_database(name)
        restore(dumped, place)
        asyncio.run(migrate(place))
        return name

    return once


@pytest.fixture(params=sorted(folder for folder in FOLDER.iterdir() if folder.is_dir()), ids=lambda folder: folder.name)
def version(request: pytest.FixtureRequest) -> Path:
    """Each version that has left a sample."""
    folder: Path = request.param
    return folder


@pytest.fixture(params=BACKENDS)
def sample(request: pytest.FixtureRequest, version: Path, tmp_path: Path) -> Iterator[Sample]:
    """A copy of the sample of a version, once per backend."""
    unpack(version / f"{request.param}.tar.gz", tmp_path)
    place = request.getfixturevalue(f"{request.param}_place")
    backend = BACKENDS[request.param](place)
    yield Sample(backend, tmp_path)
    backend.close()


@pytest.fixture
def files_place(tmp_path: Path) -> str:
    asyncio.run(migrate(f"file:{tmp_path / STORE}"))
    return str(tmp_path / STORE)


@pytest.fixture
def postgres_place(cluster: PrivateCluster, restored: Callable[[Path], str], version: Path) -> Iterator[str]:
    name = f"sample_copy_{next(_numbers)}"
    yield cluster.create_database(name, template=restored(version / "postgres.sql"))
    cluster.drop_database(name)


@pytest.fixture
async def sites(tmp_path: Path) -> AsyncIterator[tuple[RunningServer, RunningServer]]:
    """The running stand-ins for GitHub and Jira."""
    running = await start(build_github(tmp_path / "github.json")), await start(build_jira(tmp_path / "jira.json"))
    yield running
    for site in running:
        await site.stop()
