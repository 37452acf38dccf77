from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kingdom.soldiers.agents.port import (
    AgentMessage,
    CostUpdate,
    PetitionRequest,
    ToolUse,
    TurnAnswer,
    TurnQuestion,
    TurnUpdate,
)
from kingdom.soldiers.agents.transcript import (
    TranscriptEntry,
    append_entry,
    inspect_entries,
    read_entries,
    read_page,
    tail_offset,
    to_entry,
    try_decode_message,
)
from kingdom.soldiers.redaction import REDACTED, Redaction
from kingdom.workflow.model.messages.answers import TranscriptFinding

TURN = "wf-1-w1-t1#1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "soldier-1-1.json"


@pytest.mark.parametrize("durable", [True, False])
def test_entries_are_returned_in_their_order(path: Path, *, durable: bool) -> None:
    for number in range(3):
        append_entry(path, {"n": number, "text": "zwölf\nlines"}, durable=durable)
    assert timeless(read_entries(path)) == [{"n": number, "text": "zwölf\nlines"} for number in range(3)]


def test_a_reader_continues_at_its_offset(path: Path) -> None:
    append_entry(path, {"n": 1})
    first = read_page(path)
    append_entry(path, {"n": 2})
    second = read_page(path, first.next_offset)
    assert (timeless(first.entries), timeless(second.entries)) == ([{"n": 1}], [{"n": 2}])
    assert read_page(path, second.next_offset).entries == []


def test_a_page_has_about_the_requested_size(path: Path) -> None:
    for number in range(10):
        append_entry(path, {"n": number, "text": "x" * 100})
    page = read_page(path, at_most=200)
    assert [entry["n"] for entry in page.entries] == [0, 1]
    assert [entry["n"] for entry in read_page(path, page.next_offset).entries] == list(range(2, 10))


def test_an_entry_longer_than_a_page_is_read_whole(path: Path) -> None:
    append_entry(path, {"text": "x" * 1000})
    assert timeless(read_page(path, at_most=10).entries) == [{"text": "x" * 1000}]


def test_a_line_that_is_still_being_written_is_left_for_later(path: Path) -> None:
    append_entry(path, {"n": 1})
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(b'{"n": 2')
    assert read_page(path).next_offset == whole
    with path.open("ab") as file:
        file.write(b"}\n")
    assert read_page(path, whole).entries == [{"n": 2}]


def test_an_incomplete_line_does_not_swallow_the_next(path: Path) -> None:
    append_entry(path, {"n": 1})
    with path.open("ab") as file:
        file.write(b'{"n": 2, "te')
    append_entry(path, {"n": 3})
    assert timeless(read_entries(path)) == [{"n": 1}, {"n": 3}]


@pytest.mark.parametrize("line", [b"[1]\n", b"\xff\xfe\n", b'{"text": "\xff"}\n', b"\n", b"nonsense\n"])
def test_a_line_that_is_not_an_entry_is_skipped(path: Path, line: bytes) -> None:
    path.write_bytes(b'{"n": 1}\n' + line + b'{"n": 2}\n')
    assert read_entries(path) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (rb'{"text": "\ud83d!"}', {"text": "?!"}),
        (rb'{"\ude00": ["a\udfff", "\ud83d\ude00"]}', {"?": ["a?", "\U0001f600"]}),
        (rb'["\ud83d"]', None),
        (rb'{"text": "\ud83d", "n": NaN}', None),
        (rb'{"text": "\ud83d', None),
        (b'{"text": "\xff"}', None),
        (b"[" * 100_000, None),
    ],
)
def test_half_a_surrogate_pair_in_a_message_of_a_program_becomes_a_question_mark(
    line: bytes, message: dict[str, Any] | None
) -> None:
    assert try_decode_message(line) == message


def test_reading_a_missing_transcript_raises_file_not_found(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_entries(path)


def test_every_entry_shows_when_it_was_written(path: Path) -> None:
    before = datetime.now(UTC)
    append_entry(path, {"type": "noted", "text": "hello"})
    (entry,) = read_entries(path)
    assert before - timedelta(seconds=1) <= datetime.fromisoformat(entry["at"]) <= datetime.now(UTC)


def test_no_secret_reaches_the_file(path: Path) -> None:
    token = f"ghp_{'a1B2' * 9}"
    redaction = Redaction(["open-sesame"])
    append_entry(path, {"type": "tool", "tool": "Bash", "detail": f"echo {token} open-sesame"}, redaction=redaction)
    append_entry(path, {"type": "petition", "kind": "github.comment", "body": {"text": [token]}})
    first, second = read_entries(path)
    assert first["detail"] == f"echo {REDACTED} {REDACTED}"
    assert second["body"] == {"text": [REDACTED]}
    assert token not in path.read_text()


@pytest.mark.parametrize("size", [1, 40, 41, 42, 80, 1000])
def test_the_tail_begins_with_a_whole_line(path: Path, size: int) -> None:
    path.write_bytes(b"".join(b'{"n": %d, "text": "%s"}\n' % (number, b"x" * 20) for number in range(9)))
    offset = tail_offset(path, size)
    read = [entry["n"] for entry in read_page(path, offset).entries]
    assert read == list(range(9))[9 - len(read) :]
    assert path.stat().st_size - offset <= size
    assert offset == 0 or len(read) == size // (path.stat().st_size // 9)


@pytest.mark.parametrize(
    ("update", "entry"),
    [
        (AgentMessage("hello"), {"type": "said", "text": "hello"}),
        (ToolUse("Bash", "make"), {"type": "tool", "tool": "Bash", "detail": "make"}),
        (CostUpdate(0.5), {"type": "spent", "costUsd": 0.5}),
        (PetitionRequest("jira.comment", {"a": 1}), {"type": "petition", "kind": "jira.comment", "body": {"a": 1}}),
        (TurnAnswer("done", 1.0), {"type": "answered", "answer": "done", "costUsd": 1.0}),
        (
            TurnQuestion("Why?", ("a", "b"), 0.1),
            {"type": "asked", "question": "Why?", "choices": ("a", "b"), "costUsd": 0.1},
        ),
    ],
)
def test_each_kind_of_update_becomes_an_entry(update: TurnUpdate, entry: dict[str, Any]) -> None:
    assert to_entry(update, TURN) == {"prompt": TURN, **entry}


@pytest.mark.parametrize(
    ("entries", "finding"),
    [
        ([], TranscriptFinding.ABSENT),
        ([{"type": "prompt", "prompt": "another#1", "text": "x"}], TranscriptFinding.ABSENT),
        ([{"type": "prompt", "prompt": TURN, "text": "x"}], TranscriptFinding.UNFINISHED),
        (
            [{"type": "prompt", "prompt": TURN}, to_entry(TurnQuestion("?", (), 0.2), TURN)],
            TranscriptFinding.UNFINISHED,
        ),
        ([{"type": "prompt", "prompt": TURN}, {"type": "interrupted", "prompt": TURN}], TranscriptFinding.UNFINISHED),
        ([{"type": "prompt", "prompt": TURN}, to_entry(TurnAnswer("yes", 0.3), TURN)], TranscriptFinding.ANSWERED),
    ],
)
def test_the_outcome_of_a_prompt_is_read_from_its_entries(
    entries: list[TranscriptEntry], finding: TranscriptFinding
) -> None:
    assert inspect_entries(entries, TURN).finding is finding


def test_an_inspection_shows_the_answer_its_cost_and_every_petition() -> None:
    petitions = (PetitionRequest("jira.comment", {"n": 1}), PetitionRequest("jira.comment", {"n": 2}))
    updates: Sequence[TurnUpdate] = (petitions[0], CostUpdate(0.25), petitions[1], TurnAnswer("yes", 0.5))
    found = inspect_entries([to_entry(update, TURN) for update in updates], TURN)
    assert (found.text, found.cost_usd, found.petitions) == ("yes", 0.5, petitions)


def test_the_charge_of_the_vendor_takes_precedence_over_the_report_of_the_agent() -> None:
    def metered(cost: float) -> TranscriptEntry:
        return {"type": "metered", "prompt": TURN, "costUsd": cost}

    asked = {"type": "prompt", "prompt": TURN}
    reported = [to_entry(update, TURN) for update in (CostUpdate(0.25), TurnAnswer("yes", 0.5))]
    found = inspect_entries([asked, metered(0.75), *reported, asked, metered(1.25), *reported], TURN)
    assert (found.finding, found.cost_usd) == (TranscriptFinding.ANSWERED, 1.25)
    # A cost before the prompt does not show that the prompt was sent.
    assert inspect_entries([metered(0.75)], TURN).finding is TranscriptFinding.ABSENT


def timeless(entries: list[TranscriptEntry]) -> list[TranscriptEntry]:
    """Return entries without their times."""
    return [{name: value for name, value in entry.items() if name != "at"} for entry in entries]
