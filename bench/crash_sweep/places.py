"""The stores of the runs: each run gets a fresh copy of one that is furnished once."""

import asyncio
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.crash_sweep import scene
from bench.crash_sweep.roles import opened
from bench.postgres import PrivateCluster
from kingdom.bootstrap import migrate

_FURNISHED = "furnished"


class Place(ABC):
    """Where stores are made, one per run."""

    @abstractmethod
    def make(self, directory: Path) -> str:
        """Make a furnished store for the run in a directory and return its URL."""

    @abstractmethod
    def drop(self, directory: Path) -> None:
        """Remove the store of a run."""


class _Files(Place):
    def __init__(self, furnished: Path) -> None:
        self._furnished = furnished

    def make(self, directory: Path) -> str:
        shutil.copytree(self._furnished, directory / "realm")
        return f"file:{directory / 'realm'}"

    def drop(self, directory: Path) -> None:
        shutil.rmtree(directory / "realm", ignore_errors=True)


class _Databases(Place):
    def __init__(self, cluster: PrivateCluster) -> None:
        self._cluster = cluster

    def make(self, directory: Path) -> str:
        return self._cluster.create_database(directory.name, template=_FURNISHED)

    def drop(self, directory: Path) -> None:
        self._cluster.drop_database(directory.name)


@contextmanager
def _files(directory: Path, sources: Path) -> Iterator[Place]:
    furnished = directory / _FURNISHED
    asyncio.run(_furnish(f"file:{furnished}", sources))
    yield _Files(furnished)


@contextmanager
def _postgres(_directory: Path, sources: Path) -> Iterator[Place]:
    with PrivateCluster() as cluster:
        asyncio.run(_furnish(cluster.create_database(_FURNISHED), sources))
        yield _Databases(cluster)


BACKENDS: Mapping[str, Callable[[Path, Path], AbstractContextManager[Place]]] = {
    "files": _files,
    "postgres": _postgres,
}


async def _furnish(url: str, sources: Path) -> None:
    await migrate(url)
    async with opened(url) as bus:
        # One failure is forgiven, for the crashes of an agent; after any other crash the judge would find it.
        await scene.furnish(bus, sources, scene.template(retries=1))
