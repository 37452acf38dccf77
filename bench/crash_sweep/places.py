"""The stores of the runs: each run gets a copy of one prepared store."""

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
from kingdom.workflow.model.resources.template import WorkflowTemplate

_FURNISHED = "furnished"


class Place(ABC):
    """Creates one store per run."""

    @abstractmethod
    def make(self, directory: Path) -> str:
        """Create a prepared store for a run and return its URL."""

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
def _files(directory: Path, sources: Path, made_from: WorkflowTemplate) -> Iterator[Place]:
    furnished = directory / _FURNISHED
    asyncio.run(_furnish(f"file:{furnished}", sources, made_from))
    yield _Files(furnished)


@contextmanager
def _postgres(_directory: Path, sources: Path, made_from: WorkflowTemplate) -> Iterator[Place]:
    with PrivateCluster() as cluster:
        asyncio.run(_furnish(cluster.create_database(_FURNISHED), sources, made_from))
        yield _Databases(cluster)


BACKENDS: Mapping[str, Callable[[Path, Path, WorkflowTemplate], AbstractContextManager[Place]]] = {
    "files": _files,
    "postgres": _postgres,
}


async def _furnish(url: str, sources: Path, made_from: WorkflowTemplate) -> None:
    await migrate(url)
    async with opened(url) as bus:
        await scene.furnish(bus, sources, made_from)
