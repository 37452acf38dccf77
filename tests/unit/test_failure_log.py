import logging
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from kingdom.errors import KingdomError, Unavailable
from kingdom.failure_log import log_failure
from kingdom.log_output import configure_logs


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (Unavailable("no server"), {}),
        (Unavailable("no server"), {"expected": (KingdomError, OSError)}),
        (OSError("no space left"), {"expected": (KingdomError, OSError)}),
    ],
    ids=["own", "own and others", "named"],
)
def test_an_expected_error_is_a_warning_without_a_traceback(error: Exception, options: dict[str, Any]) -> None:
    configure_logs(json=True, level=logging.WARNING)
    with capture_logs() as lines:
        log_failure(structlog.get_logger(), "a step failed", error, step=1, **options)
    assert lines == [{"event": "a step failed", "log_level": "warning", "error": str(error), "step": 1}]


def test_an_error_without_a_text_is_shown_with_its_class() -> None:
    with capture_logs() as lines:
        log_failure(structlog.get_logger(), "a step failed", TimeoutError())
    assert lines[0]["error"] == "TimeoutError"


def test_an_unexpected_error_is_an_error_with_its_traceback() -> None:
    error = OSError("no space left")
    with capture_logs() as lines:
        log_failure(structlog.get_logger(), "a step failed", error, step=1)
    assert lines == [
        {"event": "a step failed", "log_level": "error", "error": "no space left", "step": 1, "exc_info": error}
    ]
