import json

import pytest

from kingdom.cli.up.log_lines import RoleLog, RoleLogLine, write_to_stderr

LINE = b'{"event": "role ended", "level": "warning", "at": "2026-02-07T10:00:00Z", "role": "king", "code": 3}'


def read_lines(*lines: bytes) -> tuple[list[RoleLogLine], RoleLog]:
    reported: list[RoleLogLine] = []
    lines_ = RoleLog(reported.append)
    for line in lines:
        lines_.add_role_output("king", line)
    return reported, lines_


def test_a_log_entry_is_shown_with_its_role_as_text_and_as_json() -> None:
    (line,), _ = read_lines(LINE)
    assert str(line) == "2026-02-07T10:00:00.000Z warning king: role ended code=3"
    assert json.loads(line.json) == {
        "at": "2026-02-07T10:00:00Z",
        "level": "warning",
        "role": "king",
        "event": "role ended",
        "code": 3,
    }


def test_a_line_that_is_not_a_log_entry_is_shown_unchanged() -> None:
    reported, _ = read_lines(b"Traceback (most recent call last):", b"[1, 2]", b'{"event": "x", "at": "soon"}', b"\xff")
    assert [line.text for line in reported] == [
        "Traceback (most recent call last):",
        "[1, 2]",
        '{"event": "x", "at": "soon"}',
        "\ufffd",
    ]
    assert {(line.role, line.level) for line in reported} == {("king", "error")}


def test_only_the_last_warnings_and_errors_are_kept() -> None:
    _, lines = read_lines(*[LINE] * 20, b'{"event": "calm", "level": "info"}')
    assert {line.text for line in lines.last} == {"role ended"}
    assert len(lines.last) == 8


def test_output_of_a_process_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    RoleLog(write_to_stderr(json=False)).add_role_output("king", b"\x1b]0;owned\x07 \xc2\x9b2J")
    assert capsys.readouterr().err.endswith(r" error king: \x1b]0;owned\x07 \x9b2J" + "\n")
