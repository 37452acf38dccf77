"""Where damages are looked for, how some are drawn, and which part of the proof each must be noticed by."""

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
    """Files that are damaged alike: how many mutants are drawn from them, and the backend that each is tried on."""

    files: tuple[str, ...]
    share: int
    backend: str


_POSTGRES, _FILES, _BUS = "backends/postgres", "backends/files", "bus"
# Moving a store has a proof of its own, and verify.sql belongs to the checker.
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
        tuple(f"{_FILES}/{name}.py" for name in ("books", "draft", "journal", "replay", "store", "transaction")),
        16,
        "files",
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
    ),
}


@cache
def find_mutants(region: Region) -> list[Mutant]:
    """Return every damage to the files of a region, each under a name of its own."""
    return list(_named(mutant for file in region.files for mutant in _of_file(file)))


def draw(seed: int, shares: float = 1.0) -> list[tuple[Region, Mutant]]:
    """Draw from each region its share of mutants; the same ones for the same seed and sources."""
    drawn = []
    for name, region in REGIONS.items():
        rng = random.Random(f"{seed} {name}")
        found = find_mutants(region)
        some = rng.sample(found, min(len(found), max(1, round(region.share * shares))))
        drawn += [(region, mutant) for mutant in some]
    return drawn


def find_by_name(name: str) -> tuple[Region, Mutant]:
    """Return the mutant of a name that a report has shown."""
    for region in REGIONS.values():
        for mutant in find_mutants(region):
            if mutant.name == name:
                return region, mutant
    raise LookupError(f"no mutant is called {name!r}: see --list")


def _of_file(file: str) -> Iterator[Mutant]:
    source = (SOURCE / file).read_text(encoding="utf-8")
    return statement_mutants(file, source) if file.endswith(".sql") else function_mutants(file, source)


def _named(mutants: Iterable[Mutant]) -> Iterator[Mutant]:
    """Give damages that read alike a number."""
    seen: Counter[str] = Counter()
    for mutant in mutants:
        seen[mutant.name] += 1
        number = seen[mutant.name]
        yield mutant if number == 1 else replace(mutant, damage=f"{mutant.damage} ({number})")
