"""A plugin that fails the session if a test ran twice, since reruns hide flaky tests."""

from collections import Counter

import pytest

_begun: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _begun[report.nodeid] += report.when == "setup"


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _ran_again():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"tests that ran again: {' '.join(_ran_again()) or 'none'}")


def _ran_again() -> list[str]:
    return [name for name, count in _begun.items() if count > 1]
