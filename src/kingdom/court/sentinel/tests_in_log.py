"""Count the tests that a job has run, by the summaries that test runners print. This module does no I/O."""

import re
from collections.abc import Mapping

# GitHub puts the time before each line of a log, and runners color their lines.
_NO_WORDS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|^\ufeff?\d{4}-\d\d-\d\dT[\d:.]+Z ", re.MULTILINE)
_PYTEST = r"\d+ (?:passed|failed|errors?|skipped|deselected|xfailed|xpassed|warnings?|rerun|subtests (?:passed|failed))"
# The line with the totals of a runner.
_TOTALS = re.compile(
    rf"^(?:=+ )?(?P<pytest>no tests ran|{_PYTEST}(?:, {_PYTEST})*) in [\d.]+s[ ()\d:]*=*$"
    r"|^Ran (?P<unittest>\d+) tests? in "
    r"|^(?:OK|FAILED) \((?:[a-z ]+=\d+, )*skipped=(?P<unittest_skipped>\d+)"
    r"|^test result: \w+\. (?P<cargo>\d+ passed; \d+ failed)"
    r"|^ *Tests:? +(?P<jest>\d+ \w+(?:(?:, | \| )\d+ \w+)*)(?: \(\d+\))?$"
    # Maven also prints a line for each class, which ends with a time.
    r"|^(?:\[\w+\] +)?Tests run: (?P<maven>\d+), Failures: \d+, Errors: \d+, Skipped: (?P<maven_skipped>\d+)"
    r"(?:, Flakes: \d+)?$"
    r"|^(?P<rspec>\d+) examples?, \d+ failures?(?:, (?P<rspec_skipped>\d+) pending)?"
    r"|^ +(?P<mocha>\d+ (?:passing|failing)\b)"
    r"|^(?:#|\N{INFORMATION SOURCE}) (?P<node>(?:pass|fail) \d+)$",
    re.MULTILINE,
)
_RESULTS = re.compile(r"(\d+) (?:passed|failed|passing|failing)\b|(?:pass|fail) (\d+)")
_ERRORS = re.compile(r"(\d+) errors?\b")
_LINE_LENGTH_MAX = 400


def count_tests(log: str) -> int | None:
    """Return how many tests the runners in a log have run, without skipped ones. Return None if no totals are known."""
    lines = (line for line in _NO_WORDS.sub("", log).splitlines() if len(line) <= _LINE_LENGTH_MAX)
    counts = [_count(totals.groupdict()) for line in lines if (totals := _TOTALS.match(line.rstrip()))]
    return max(0, sum(counts)) if counts else None


def _count(totals: Mapping[str, str | None]) -> int:
    """Return how many tests a line counts. A line that counts only skipped tests is subtracted."""
    count = 0
    for name, text in totals.items():
        if text is None:
            continue
        if name.endswith("_skipped"):
            count -= int(text)
        elif text.isdecimal():
            count += int(text)
        else:
            # A test whose clean-up failed is also an error of pytest, so errors count only alone.
            results = _RESULTS.findall(text) or [(number, "") for number in _ERRORS.findall(text)]
            count += sum(int(first or second) for first, second in results)
    return count
