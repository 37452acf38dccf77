"""The stores of the runs: each run gets a copy of one prepared store."""

import asyncio
import shutil
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.postgres import PrivateCluster
from kingdom.bootstrap import migrate

_PREPARED = "prepared"

# Writes to a migrated store what all runs begin with.
Prepare = Callable[[str], Awaitable[None]]


class Place(ABC):
    """Creates and removes the stores of the runs."""

    @abstractmethod
    def make(self, directory: Path) -> str:
        """Create a prepared store for a run and return its URL."""

    @abstractmethod
    def drop(self, directory: Path) -> None:
        """Remove the store of a run."""


class _Files(Place):
    def __init__(self, prepared: Path) -> None:
        self._prepared = prepared

    def make(self, directory: Path) -> str:
        shutil.copytree(self._prepared, directory / "realm")
        return f"file:{directory / 'realm'}"

    def drop(self, directory: Path) -> None:
        shutil.rmtree(directory / "realm", ignore_errors=True)


class _Databases(Place):
    def __init__(self, cluster: PrivateCluster) -> None:
        self._cluster = cluster

    def make(self, directory: Path) -> str:
        return self._cluster.create_database(directory.name, template=_PREPARED)

    def drop(self, directory: Path) -> None:
        self._cluster.drop_database(directory.name)


@contextmanager
def _files(directory: Path, prepare: Prepare) -> Iterator[Place]:
    prepared = directory / _PREPARED
    asyncio.run(_prepare(f"file:{prepared}", prepare))
    yield _Files(prepared)


@contextmanager
def _postgres(_directory: Path, prepare: Prepare) -> Iterator[Place]:
    with PrivateCluster() as cluster:
        asyncio.run(_prepare(cluster.create_database(_PREPARED), prepare))
        yield _Databases(cluster)


BACKENDS: Mapping[str, Callable[[Path, Prepare], AbstractContextManager[Place]]] = {
    "files": _files,
    "postgres": _postgres,
}


async def _prepare(url: str, prepare: Prepare) -> None:
    await migrate(url)
    await prepare(url)
