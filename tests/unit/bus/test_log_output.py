"""Log lines of structlog and of the standard library."""

import json
import logging
from typing import NoReturn

import pytest
import structlog

from kingdom.log_output import configure_logs


@pytest.fixture
def kept() -> list[object]:
    """A processor that keeps the lines, as a live screen does."""
    lines: list[object] = []

    def keep(_logger: object, _method: str, event: structlog.typing.EventDict) -> NoReturn:
        lines.append(event["event"])
        raise structlog.DropEvent

    configure_logs(json=True, also=[keep])
    return lines


def test_a_processor_that_drops_log_lines_does_not_disturb_a_library_that_logs(
    kept: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    logging.getLogger("psycopg.pool").warning("a connection was lost")
    structlog.get_logger("kingdom").warning("as was said")
    assert kept == ["a connection was lost", "as was said"]
    assert capsys.readouterr().err == ""


HOSTILE = "ask\x1b]0;pwned\x07\x9b2J\n2026-11-16 [error] forged"


def test_hostile_text_in_the_log_controls_no_terminal_and_forges_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(json=False)
    structlog.get_logger("kingdom").warning(HOSTILE, task=HOSTILE, tasks=[HOSTILE])
    logging.getLogger("aiohttp").warning("said %s", HOSTILE)
    try:
        int(HOSTILE)
    except ValueError:
        structlog.get_logger("kingdom").exception("broken")
        logging.getLogger("aiohttp").exception("broken")
    lines = capsys.readouterr().err.splitlines()
    assert sum("pwned" in line for line in lines) >= 5
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("2026-11-16 [error]") for line in lines)


def test_json_lines_contain_the_text_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(json=True)
    structlog.get_logger("kingdom").warning(HOSTILE)
    line = capsys.readouterr().err
    assert json.loads(line)["event"] == HOSTILE
    assert line.rstrip("\n").isprintable()
