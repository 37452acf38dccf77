"""Background work blocks nothing, and the log shows why it failed."""

import logging
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from kingdom.court.envoy.background import BackgroundTasks
from kingdom.errors import Transient
from kingdom.log_output import configure_logs


@pytest.fixture
def logs() -> Iterator[list[EventDict]]:
    configure_logs(json=True, level=logging.WARNING)
    try:
        with capture_logs() as logs:
            yield logs
    finally:
        configure_logs(json=True, level=logging.ERROR)


@pytest.mark.parametrize(
    ("error", "level", "text"),
    [
        (Transient("Slack cannot be reached"), "warning", "Slack cannot be reached"),
        (Transient(""), "warning", "Transient"),
        (KeyError("ts"), "error", "'ts'"),
    ],
    ids=["expected", "without a text", "bug"],
)
async def test_a_failure_is_logged_and_a_bug_with_its_traceback(
    logs: list[EventDict], error: Exception, level: str, text: str
) -> None:
    async def fail() -> None:
        raise error

    tasks = BackgroundTasks()
    tasks.start("mark a message", fail)
    await tasks.end()
    [line] = logs
    assert (line["log_level"], line["what"], line["error"]) == (level, "mark a message", text)
    assert line.get("exc_info") == (error if level == "error" else None)
