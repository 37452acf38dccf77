"""The backends under torment: where each is kept for one run, and the ways to get it wrong."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from bench.chaos.variants import VARIANTS
from bench.chaos.variants_files import FILES_VARIANTS, many_checkpoints, script_commits
from bench.chaos.variants_postgres import POSTGRES_VARIANTS
from bench.postgres import PrivateCluster


@dataclass(frozen=True, slots=True)
class Place:
    """A store of one run; `deadlocks` counts those that it has seen so far."""

    url: str
    deadlocks: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Backend:
    """One backend; `prepare` makes its processes do often what is rare, and stop or die where a script says so."""

    place: Callable[[], AbstractContextManager[Place]]
    variants: Mapping[str, Callable[[], None]]
    prepare: Sequence[Callable[[], None]]


@contextmanager
def _private_cluster() -> Iterator[Place]:
    with PrivateCluster() as cluster:

        def deadlocks() -> int:
            return cluster.log_path.read_text().count("deadlock detected") if cluster.log_path else 0

        yield Place(cluster.create_database("chaos"), deadlocks)


@contextmanager
def _private_directory() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="kingdom-chaos-") as directory:
        yield Place(f"file:{directory}", lambda: 0)


BACKENDS: Mapping[str, Backend] = {
    "postgres": Backend(_private_cluster, {**VARIANTS, **POSTGRES_VARIANTS}, ()),
    "files": Backend(_private_directory, {**VARIANTS, **FILES_VARIANTS}, (many_checkpoints, script_commits)),
}
