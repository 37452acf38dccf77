"""The result file of an agent, and attempts to misuse it."""

import json
import os
from pathlib import Path

import pytest

from kingdom.soldiers.agent_tools.result_file import RESULT_FILE
from kingdom.soldiers.agents.port import AgentFailed, TurnAnswer, TurnQuestion
from kingdom.soldiers.turns.result import apply_reported_status, read_result, remove_unsuccessful_result

ANSWERED = TurnAnswer("done", 0.5)


def report(space: Path, **result: object) -> None:
    (space / RESULT_FILE).write_text(json.dumps(result))


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    report(tmp_path, status="success", summary="all good", details={"files": 3})
    assert read_result(tmp_path) == {"status": "success", "summary": "all good", "details": {"files": 3}}
    assert apply_reported_status(ANSWERED, tmp_path) == ANSWERED


def test_no_report_is_none(tmp_path: Path) -> None:
    assert read_result(tmp_path) is None
    assert apply_reported_status(ANSWERED, tmp_path) == ANSWERED


@pytest.mark.parametrize(
    "content",
    [
        '{"_kingdom": 1}',
        r'{"summary": "a\u0000b"}',
        "",
        "{",
        "[1]",
        "7",
        '{"a": ' * 5000,
        '"' + "x" * 70_000 + '"',
        "\udcff",
    ],
)
def test_a_file_that_is_too_large_or_not_a_document_is_no_report(tmp_path: Path, content: str) -> None:
    (tmp_path / RESULT_FILE).write_bytes(content.encode("utf-8", "surrogateescape"))
    assert read_result(tmp_path) is None


def test_a_link_is_not_followed_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"password": "x"}')
    (tmp_path / RESULT_FILE).symlink_to(secret)
    assert read_result(tmp_path) is None
    (tmp_path / RESULT_FILE).unlink()
    os.mkfifo(tmp_path / RESULT_FILE)
    assert read_result(tmp_path) is None
    (tmp_path / RESULT_FILE).unlink()
    (tmp_path / RESULT_FILE).mkdir()
    assert read_result(tmp_path) is None


def test_an_answer_with_a_reported_failure_has_failed(tmp_path: Path) -> None:
    report(tmp_path, status="failed", error="no such branch")
    with pytest.raises(AgentFailed, match="no such branch") as failure:
        apply_reported_status(ANSWERED, tmp_path)
    assert failure.value.cost_usd == 0.5


def test_a_report_that_needs_a_person_is_a_question(tmp_path: Path) -> None:
    report(tmp_path, status="needs_human", question="Which one?", choices=["a", "b"])
    assert apply_reported_status(ANSWERED, tmp_path) == TurnQuestion("Which one?", ("a", "b"), 0.5)


def test_an_unsuccessful_result_is_removed_before_the_next_turn_and_a_success_is_kept(tmp_path: Path) -> None:
    report(tmp_path, status="needs_human", question="Which one?")
    remove_unsuccessful_result(tmp_path)
    assert read_result(tmp_path) is None
    report(tmp_path, status="success")
    remove_unsuccessful_result(tmp_path)
    assert read_result(tmp_path) == {"status": "success"}
