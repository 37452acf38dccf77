"""The files that get mutants, how mutants are drawn, and which backend tests each one."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from bench.mutants.functions import function_mutants
from bench.mutants.mutant import Mutant
from bench.mutants.statements import statement_mutants

SOURCE = Path(__file__).parents[2] / "src" / "kingdom"


@dataclass(frozen=True, slots=True)
class Region:
    """Some files, the number of mutants that is drawn from them, and their backend and tests.

    The mutants are tested on the `backend`; `own_tests` are the tests of these files.
    """

    files: tuple[str, ...]
    share: int
    backend: str
    own_tests: tuple[str, ...]


_POSTGRES, _FILES, _BUS = "backends/postgres", "backends/files", "bus"


def _tests(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/integration/test_{name}.py" for name in names)


_OF_POSTGRES = _tests(
    "carried_events",
    "pgbouncer",
    "lost_transactions",
    "clock_set_back",
    "isolation",
    "wakeups",
    "store_faults",
    "retention",
    "worker_reactions",
    "plans",
    "publish_alone",
    "written_together",
)
# Export and import have their own tests, and verify.sql belongs to the checker.
REGIONS: Mapping[str, Region] = {
    "statements": Region(
        tuple(
            f"{_POSTGRES}/sql/{name}.sql" for name in ("claim", "lease", "operations", "publish", "record", "settle")
        ),
        40,
        "postgres",
        _OF_POSTGRES,
    ),
    "postgres": Region(
        tuple(f"{_POSTGRES}/{name}.py" for name in ("bus", "transaction")), 12, "postgres", _OF_POSTGRES
    ),
    "files": Region(
        tuple(
            f"{_FILES}/{name}.py"
            for name in (
                "index/event_index",
                "transaction_plan",
                "journal/journal",
                "tree/replay",
                "store",
                "transaction",
            )
        ),
        16,
        "files",
        _tests(
            "files_recovery",
            "files_damaged",
            "files_clock",
            "files_leases",
            "files_journal",
            "files_published_twice",
            "files_unreadable",
        ),
    ),
    "core": Region(
        tuple(
            f"{_BUS}/{name}.py"
            for name in (
                "effects/ledger",
                "effects/perform",
                "port",
                "worker/execution",
                "worker/keeper",
                "worker/worker",
            )
        ),
        16,
        "files",
        (
            "tests/unit/bus/test_keeper.py",
            "tests/unit/bus/test_worker.py",
            *_tests(
                "effects",
                "worker_deploy",
                "worker_reactions",
                "worker_order",
                "worker_parts",
                "worker_leases",
                "worker_drain",
            ),
        ),
    ),
}


@cache
def find_mutants(region: Region) -> list[Mutant]:
    """Return every mutant of the files of a region, each with a unique name."""
    return list(_named(mutant for file in region.files for mutant in _of_file(file)))


def draw(regions: Iterable[Region], seed: int, shares: float = 1.0) -> list[tuple[Region, Mutant]]:
    """Draw mutants of these regions by the hash of their names, so that a change elsewhere does not change the draw."""

    def rank(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed} {mutant.name}".encode()).digest()

    return [
        (region, mutant)
        for region in regions
        for mutant in sorted(find_mutants(region), key=rank)[: max(1, round(region.share * shares))]
    ]


def find_by_name(name: str) -> tuple[Region, Mutant]:
    """Return the mutant with a name from a report."""
    for region in REGIONS.values():
        for mutant in find_mutants(region):
            if mutant.name == name:
                return region, mutant
    raise LookupError(f"there is no mutant {name!r}: see --list")


def _of_file(file: str) -> Iterator[Mutant]:
    source = (SOURCE / file).read_text(encoding="utf-8")
    return statement_mutants(file, source) if file.endswith(".sql") else function_mutants(file, source)


def _named(mutants: Iterable[Mutant]) -> Iterator[Mutant]:
    """Add numbers to mutants with the same description."""
    seen: Counter[str] = Counter()
    for mutant in mutants:
        seen[mutant.name] += 1
        number = seen[mutant.name]
        yield mutant if number == 1 else replace(mutant, damage=f"{mutant.damage} ({number})")
