import ast
import random
from collections.abc import Sequence

import pytest

from bench.mutants import sites
from bench.mutants.functions import function_mutants
from bench.mutants.mutant import Mutant
from bench.mutants.reach import MeasuredTest, choose_tests
from bench.mutants.sites import REGIONS, draw, find_by_name, find_mutants
from bench.mutants.statements import statement_mutants
from bench.mutants.survivors import EXPLAINED

STATEMENT = """-- name: take
-- One FOR UPDATE in a comment, which no mutant changes.
WITH c AS (
  SELECT id FROM event
   WHERE stream = %(stream)s AND (due <= now() OR id IN (1, 2)) AND status = 'a AND b'
   ORDER BY due, id LIMIT 3 FOR UPDATE SKIP LOCKED)
UPDATE event o SET status = 'taken', attempts = attempts + 1, updated_at = now()
 WHERE o.id = ANY(ARRAY(SELECT id FROM c)) AND lock IS NULL RETURNING id;
"""
FUNCTION = '''
def settle(rows, token):
    """Never say never."""
    _log.info("settling")
    if not rows:
        raise Lost(token)
    for row in sorted(rows):
        if row.token == token and row.open:
            row.write(done=True)
    return len(rows) + 1
'''


def damaged(mutants: Sequence[Mutant], source: str) -> set[str]:
    """Return for each mutant of a source the lines that differ from the source."""
    whole = set(source.splitlines())
    return {line.strip() for mutant in mutants for line in mutant.applied(source).splitlines() if line not in whole}


def test_each_mutant_of_a_statement_changes_one_predicate_lock_order_or_assignment() -> None:
    mutants = list(statement_mutants("take.sql", STATEMENT))
    assert damaged(mutants, STATEMENT) == {
        "WHERE true AND (due <= now() OR id IN (1, 2)) AND status = 'a AND b'",
        "WHERE stream = %(stream)s AND true AND status = 'a AND b'",
        "WHERE stream = %(stream)s AND (due <= now() OR id IN (1, 2)) AND true",
        "WHERE stream = %(stream)s AND (due >= now() OR id IN (1, 2)) AND status = 'a AND b'",
        "ORDER BY due DESC, id DESC LIMIT 3 FOR UPDATE SKIP LOCKED)",
        "ORDER BY due, id LIMIT 3 )",
        "ORDER BY due, id LIMIT 3 FOR UPDATE )",
        "UPDATE event o SET attempts = attempts + 1, updated_at = now()",
        "UPDATE event o SET status = 'taken', updated_at = now()",
        "UPDATE event o SET status = 'taken', attempts = attempts + 0, updated_at = now()",
        "WHERE true AND lock IS NULL RETURNING id;",
        "WHERE o.id = ANY(ARRAY(SELECT id FROM c)) AND true RETURNING id;",
        "WHERE o.id = ANY(ARRAY(SELECT id FROM c)) AND lock IS NOT NULL RETURNING id;",
        "WHERE false AND (o.id = ANY(ARRAY(SELECT id FROM c)) AND lock IS NULL) RETURNING id;",
    }


def test_each_mutant_of_a_function_changes_one_condition_or_step() -> None:
    mutants = list(function_mutants("settle.py", FUNCTION))
    assert damaged(mutants, FUNCTION) == {
        "if (not (not rows)):",
        "pass",
        "for row in list(rows):",
        "if ((row.token == token) or (row.open)):",
        "if ((row.token) != (token)) and row.open:",
        "row.write(done=False)",
        "row.write(done=True); row.write(done=True)",
        "return len(rows)",
    }


@pytest.mark.parametrize("region", REGIONS)
def test_each_mutant_of_the_product_has_its_own_name_changes_the_source_and_can_be_parsed(region: str) -> None:
    mutants = find_mutants(REGIONS[region])
    assert len({mutant.name for mutant in mutants}) == len(mutants) > REGIONS[region].share
    for mutant in random.Random(region).sample(mutants, REGIONS[region].share):
        source = (sites.SOURCE / mutant.file).read_text(encoding="utf-8")
        assert mutant.applied(source) != source
        if mutant.file.endswith(".py"):
            ast.parse(mutant.applied(source))


def test_the_same_seed_draws_the_same_mutants_and_another_one_others() -> None:
    names = [[mutant.name for _, mutant in draw(REGIONS.values(), seed)] for seed in (17, 17, 18)]
    assert names[0] == names[1] != names[2]
    assert len(names[0]) == len(set(names[0])) == sum(region.share for region in REGIONS.values())


def test_one_new_mutant_replaces_at_most_one_drawn_mutant_per_region(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {mutant.name for _, mutant in draw(REGIONS.values(), 17)}
    found = {region: find_mutants(region) for region in REGIONS.values()}
    fresh = Mutant("a.sql", "take", "drops a lock", 1, 0, 0, "")
    monkeypatch.setattr(sites, "find_mutants", lambda region: [fresh, *found[region]])
    assert len(before - {mutant.name for _, mutant in draw(REGIONS.values(), 17)}) <= len(REGIONS)


def test_the_tests_that_reach_a_mutant_run_first_and_the_fastest_of_them_before_the_others() -> None:
    tests = [
        MeasuredTest("quick", 0.1, frozenset({"other"})),
        MeasuredTest("reaching", 0.2, frozenset({"take", "other"})),
        MeasuredTest("slow", 9.0, frozenset({"take"})),
    ]
    mutant = next(statement_mutants("take.sql", STATEMENT))
    assert choose_tests(tests, mutant, only_reaching=True) == ["reaching", "slow"]
    assert choose_tests(tests, mutant, only_reaching=False) == ["reaching", "slow", "quick"]


def test_a_test_that_reaches_a_function_of_the_same_name_in_another_file_is_not_chosen() -> None:
    mutant = next(function_mutants("bus/settle.py", FUNCTION))
    tests = [MeasuredTest("test", 0.1, frozenset({"settle", "files/settle.py settle"}))]
    assert choose_tests(tests, mutant, only_reaching=True) == []


def test_a_mutant_is_found_again_by_the_name_that_a_report_shows() -> None:
    region, mutant = draw(REGIONS.values(), 17)[0]
    assert find_by_name(mutant.name) == (region, mutant)
    with pytest.raises(LookupError, match="--list"):
        find_by_name("nobody")


def test_every_explained_survivor_is_still_a_mutant_and_the_page_of_guarantees_gives_the_reason() -> None:
    page = " ".join((sites.SOURCE.parents[1] / "docs" / "guarantees.md").read_text(encoding="utf-8").split()).lower()
    for name, reason in EXPLAINED.items():
        find_by_name(name)
        assert all(part.strip() in page for part in reason.lower().split(";")), f"docs/guarantees.md lacks: {reason}"
