"""The files that get mutants, how mutants are drawn, and which backend tests each one."""

import random
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
    """Files with a common number of drawn mutants and the backend that tests them."""

    files: tuple[str, ...]
    share: int
    backend: str


_POSTGRES, _FILES, _BUS = "backends/postgres", "backends/files", "bus"
# Export and import have their own tests, and verify.sql belongs to the checker.
REGIONS: Mapping[str, Region] = {
    "statements": Region(
        tuple(
            f"{_POSTGRES}/sql/{name}.sql" for name in ("claim", "lease", "operations", "publish", "record", "settle")
        ),
        40,
        "postgres",
    ),
    "postgres": Region(tuple(f"{_POSTGRES}/{name}.py" for name in ("bus", "transaction")), 12, "postgres"),
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
    ),
    "core": Region(
        tuple(f"{_BUS}/{name}.py" for name in ("execution", "keeper", "ledger", "perform", "port", "worker")),
        16,
        "files",
    ),
}


@cache
def find_mutants(region: Region) -> list[Mutant]:
    """Return every mutant of the files of a region, each with a unique name."""
    return list(_named(mutant for file in region.files for mutant in _of_file(file)))


def draw(seed: int, shares: float = 1.0) -> list[tuple[Region, Mutant]]:
    """Draw mutants of each region, always the same for one seed and source."""
    drawn = []
    for name, region in REGIONS.items():
        rng = random.Random(f"{seed} {name}")
        found = find_mutants(region)
        some = rng.sample(found, min(len(found), max(1, round(region.share * shares))))
        drawn += [(region, mutant) for mutant in some]
    return drawn


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
