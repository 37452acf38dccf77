"""Log lines, whoever writes them."""

import logging
from typing import NoReturn

import pytest
import structlog

from kingdom.bus.logs import configure_logs


@pytest.fixture
def kept() -> list[object]:
    """The lines of one that keeps them to itself, as a screen does."""
    lines: list[object] = []

    def keep(_logger: object, _method: str, event: structlog.typing.EventDict) -> NoReturn:
        lines.append(event["event"])
        raise structlog.DropEvent

    configure_logs(json=True, also=[keep])
    return lines


def test_a_library_whose_line_is_kept_back_goes_on(kept: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("psycopg.pool").warning("a connection was lost")
    structlog.get_logger("kingdom").warning("as was said")
    assert kept == ["a connection was lost", "as was said"]
    assert capsys.readouterr().err == ""
