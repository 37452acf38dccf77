"""How many tests a job has run, by its log."""

import pytest

from kingdom.court.sentinel.tests_in_log import count_tests

TOTALS = {
    "pytest": ("===== 1 failed, 40 passed, 3 skipped, 2 warnings in 1.25s =====", 41),
    "pytest, minutes": ("= 40 passed in 75.01s (0:01:15) =", 40),
    "pytest, errors": ("=== 2 errors in 0.30s ===", 2),
    "pytest, only skipped": ("=== 3 skipped in 0.30s ===", 0),
    "pytest, nothing": ("=== no tests ran in 0.01s ===", 0),
    "pytest, error after a test": ("=== 41 passed, 1 error in 0.30s ===", 41),
    "pytest, quiet": ("1 failed, 40 passed in 1.25s", 41),
    "pytest, subtests": ("=== 41 passed, 3 subtests passed in 0.10s ===", 41),
    "unittest": ("Ran 12 tests in 0.004s", 12),
    "unittest, skipped": ("Ran 12 tests in 0.004s\n\nFAILED (failures=1, skipped=2)", 10),
    "unittest, all skipped": ("Ran 12 tests in 0.004s\n\nOK (skipped=12)", 0),
    "cargo": ("test result: FAILED. 7 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out", 9),
    "jest": ("Tests:       1 failed, 2 skipped, 4 passed, 7 total", 5),
    "vitest": ("      Tests  1 failed | 4 passed (5)", 5),
    "maven": ("[INFO] Tests run: 9, Failures: 0, Errors: 0, Skipped: 2", 7),
    "maven, flakes": ("[WARNING] Tests run: 9, Failures: 0, Errors: 0, Skipped: 2, Flakes: 1", 7),
    "rspec": ("30 examples, 1 failure, 2 pending", 28),
    "mocha": ("  14 passing (32ms)\n  1 pending\n  2 failing", 16),
    "node": ("# tests 6\n# pass 5\n# fail 1\n# skipped 0", 6),
    "node, spec": ("\N{INFORMATION SOURCE} tests 6\n\N{INFORMATION SOURCE} pass 6\n\N{INFORMATION SOURCE} fail 0", 6),
}


@pytest.mark.parametrize(("log", "count"), TOTALS.values(), ids=TOTALS)
def test_the_totals_of_a_runner_are_counted_without_skipped_tests(log: str, count: int) -> None:
    assert count_tests(f"before\n{log}\nafter") == count


@pytest.mark.parametrize(("log", "count"), TOTALS.values(), ids=TOTALS)
def test_times_and_colors_of_a_log_do_not_matter(log: str, count: int) -> None:
    lines = [f"2026-11-19T01:02:03.1234567Z \x1b[32m{line}\x1b[0m\r" for line in log.split("\n")]
    assert count_tests("\ufeff" + "\n".join(lines)) == count


def test_the_totals_of_several_runners_are_added() -> None:
    assert count_tests("\n".join(log for log, _ in TOTALS.values())) == sum(count for _, count in TOTALS.values())


@pytest.mark.parametrize(
    "log",
    [
        "",
        "make: *** [test] Error 1",
        "ok  \texample.com/shop\t0.012s",
        "[INFO] Tests run: 3, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 0.1 s - in ShopTest",
        "tests passed: 3",
        "35 files in 2.1s",
        "= " + "1 passed " * 100 + "in 1s =",
    ],
)
def test_a_log_without_known_totals_has_no_count(log: str) -> None:
    assert count_tests(log) is None


@pytest.mark.parametrize(
    "part", ["= 1 passed, ", "1 passed in 1s ", "Tests: 1 passed | ", "Tests run: 1, ", "\x1b[0", "=", " "]
)
def test_hostile_lines_match_nothing_and_hide_no_totals(part: str) -> None:
    line = (part * 400)[:400]
    assert count_tests("\n".join([*[line] * 1000, part * 100_000, "Ran 3 tests in 1s"])) == 3
