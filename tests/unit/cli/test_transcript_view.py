from typing import Any

import pytest

from kingdom.cli.logs.transcript_view import TranscriptView, coalesced
from kingdom.soldiers.agents.transcript import TranscriptEntry, normalize_entry

TURN = "wf-1-w1-t1#1"


def shown(*entries: TranscriptEntry) -> list[str]:
    """Return the shown lines without the times."""
    return [line.plain[9:].rstrip() for line in TranscriptView().lines(entries)]


def entry(kind: str, /, **fields: Any) -> TranscriptEntry:
    return {"type": kind, "prompt": TURN, **fields}


@pytest.mark.parametrize(
    ("reported", "line"),
    [
        (entry("session", session="s-1", model="m", agent="claude"), "session   claude, m, session s-1"),
        (entry("prompt", text="Do it.\n"), "asked     Do it."),
        (entry("prompt", text="Do it.", continues=True), "continued Do it."),
        (entry("prompt", text="Do it.", reply="blue"), "reply     blue"),
        (entry("said", text="Hello"), "said      Hello"),
        (entry("tool", tool="Bash", detail="make test"), "tool      Bash  make test"),
        (entry("output", text="ok\n"), "          ok"),
        (entry("output", text="broken", isError=True), "error     broken"),
        (entry("petition", kind="jira.comment", body={"text": "hi"}), "petition  jira.comment  text: hi"),
        (entry("asked", question="Which?", choices=["a", "b"], costUsd=0.1), "question  Which? (a / b) ($0.10)"),
        (entry("answered", answer="done", costUsd=1.5), "answered  done ($1.50)"),
        (entry("failed", reason="limit", until="2026-01-01"), "failed    limit; it can continue at 2026-01-01"),
        (entry("interrupted"), "stopped   the turn was interrupted"),
        (entry("noted", text="the model is busy"), "note      the model is busy"),
        (entry("ended", reason="exit code 1"), "ended     exit code 1"),
    ],
)
def test_every_entry_type_has_a_description(reported: TranscriptEntry, line: str) -> None:
    assert shown(reported) == [line]


@pytest.mark.parametrize("reported", [entry("thought", text="hm"), {"n": 1}, entry("spent", costUsd=2), entry("begun")])
def test_internal_entries_of_an_agent_are_skipped(reported: TranscriptEntry) -> None:
    assert shown(reported) == []


@pytest.mark.parametrize(
    "reported", [entry("said"), entry("tool"), entry("petition", body=None), entry("answered"), {}]
)
def test_an_entry_with_missing_fields_is_at_most_one_line(reported: TranscriptEntry) -> None:
    assert len(shown(reported)) <= 1


def test_the_time_is_shown_if_it_is_known() -> None:
    (line,) = TranscriptView().lines([{"type": "said", "at": "2026-01-01T10:20:30Z", "text": "x"}])
    assert line.plain[2] == line.plain[5] == ":"
    assert line.plain[6:8] == "30"


def test_pieces_of_text_are_joined() -> None:
    pieces = [
        entry("said", text="one"),
        entry("spent", costUsd=0.1),
        entry("said", text="two"),
        entry("tool", tool="t"),
    ]
    assert [each["type"] for each in coalesced(pieces)] == ["said", "tool"]
    assert shown(*pieces)[0] == "said      one\n                   two"


def test_a_shown_answer_is_not_shown_twice() -> None:
    assert shown(entry("said", text="All done."), entry("answered", answer="All done.\n", costUsd=0.5)) == [
        "said      All done.",
        "done      ($0.50)",
    ]


def test_repeated_and_empty_entries_are_not_shown() -> None:
    busy = entry("noted", text="the model is busy")
    assert shown(busy, busy, entry("output", text=" \n"), busy) == ["note      the model is busy"]


def test_long_prompts_and_outputs_are_shortened() -> None:
    many = "\n".join(map(str, range(100)))
    (asked,) = shown(entry("prompt", text=many))
    assert asked.endswith("… and 88 more line(s)")
    (output,) = shown(entry("output", text=many))
    assert "… 94 line(s) before" in output
    assert output.endswith("99")


def test_the_transcript_of_an_agent_cannot_control_the_terminal() -> None:
    (line,) = shown(entry("said", text="\x1b[2J\x07red"))
    assert "\x1b" not in line
    assert "\x07" not in line


@pytest.mark.parametrize(
    ("written", "kind", "fields"),
    [
        ({"session": "s-1", "model": ""}, "session", {"session": "s-1"}),
        ({"prompt": TURN, "text": "Do", "reply": "", "goesOn": True}, "prompt", {"continues": True}),
        ({"prompt": TURN, "step": 1, "does": {"say": "hi"}}, "said", {"text": "hi"}),
        ({"prompt": TURN, "step": 1, "does": {"run": "ls"}, "output": "a"}, "tool", {"detail": "ls", "output": "a"}),
        ({"prompt": TURN, "step": 1, "does": {"write": "a", "text": "b"}}, "tool", {"tool": "write", "detail": "a"}),
        ({"prompt": TURN, "step": 1, "does": {"cost": 1}, "costUsd": 3}, "spent", {"costUsd": 3}),
        ({"prompt": TURN, "step": 1, "does": {"ask": "?", "choices": ["a"]}}, "asked", {"choices": ["a"]}),
        ({"prompt": TURN, "step": 1, "does": {"petition": "k", "body": {"a": 1}}}, "petition", {"body": {"a": 1}}),
        ({"prompt": TURN, "step": 1, "does": {"answer": "x"}}, "step", {}),
        ({"prompt": TURN, "begun": 1, "does": {"run": "ls"}}, "", {}),
        ({"prompt": TURN, "answer": "yes", "costUsd": 1}, "answered", {"answer": "yes", "costUsd": 1}),
        ({"prompt": TURN, "failed": "broken"}, "failed", {"reason": "broken"}),
        ({"prompt": TURN, "failed": "interrupted"}, "interrupted", {}),
        ({"type": "said", "text": "hi"}, "said", {"text": "hi"}),
    ],
)
def test_entries_of_the_scripted_agent_have_the_common_types(
    written: TranscriptEntry, kind: str, fields: TranscriptEntry
) -> None:
    reported = normalize_entry(written)
    assert reported["type"] == kind
    assert fields.items() <= reported.items()
