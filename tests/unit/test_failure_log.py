import logging

import pytest
import structlog
from structlog.testing import capture_logs

from kingdom.errors import KingdomError, Unavailable
from kingdom.failure_log import log_failure
from kingdom.log_output import configure_logs


@pytest.mark.parametrize("error", [Unavailable("no server"), OSError("no space left")], ids=["own", "named"])
def test_an_expected_error_is_a_warning_without_a_traceback(error: Exception) -> None:
    configure_logs(json=True, level=logging.WARNING)
    with capture_logs() as lines:
        log_failure(structlog.get_logger(), "a step failed", error, expected=(KingdomError, OSError), step=1)
    assert lines == [{"event": "a step failed", "log_level": "warning", "error": str(error), "step": 1}]


def test_an_unexpected_error_is_an_error_with_its_traceback() -> None:
    error = OSError("no space left")
    with capture_logs() as lines:
        log_failure(structlog.get_logger(), "a step failed", error, step=1)
    assert lines == [
        {"event": "a step failed", "log_level": "error", "error": "no space left", "step": 1, "exc_info": error}
    ]
