"""A person who approves a petition has seen its whole content."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from kingdom.court.petitions.approval import approval_question
from kingdom.court.petitions.bodies import KINDS, LineComment, PetitionBody
from kingdom.court.petitions.decision import Petition

# A value for every field of every kind. The test fails for a field that is missing here.
VALUES: dict[str, Any] = {
    "repo": "acme/rocket",
    "number": 4711,
    "event": "REQUEST_CHANGES",
    "title": "Repair the door",
    "base": "production",
    "head": "kingdom/wf-1/rocket",
    "head_sha": "0123abcd",
    "branch": "kingdom/wf-1/rocket",
    "before": "4567cdef",
    "thread": "PRRT_7",
    "resolve": True,
    "message": "The door shuts again.",
    "method": "SQUASH",
    "labels": ("ready", "size/S"),
    "remove": ("needs work",),
    "key": "QP-815",
    "to": "Shipped",
    "channel": "#ops",
    "body": f"{'A' * 29_000}\n\nThe last line of the body",
    "text": f"{'A' * 11_000}\n\nThe last line of the text",
}


def asked(kind: str, body: PetitionBody) -> Petition:
    return Petition(
        id="task-1-1",
        root="task-1",
        general="gen-pr",
        workflow_id="wf-1",
        kind=kind,
        body=msgspec.to_builtins(body),
        target=body.target,
        created_at=datetime(2026, 2, 7, tzinfo=UTC),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_every_kind_is_shown_whole(kind: str) -> None:
    names = [name for name in KINDS[kind].__struct_fields__ if name != "comments"]
    question = approval_question(asked(kind, KINDS[kind](**{name: VALUES[name] for name in names})))
    shown = [line.strip() for line in question.splitlines()]
    for name in names:
        value = VALUES[name]
        # Each item of a list is on a line of its own.
        is_list = isinstance(value, tuple)
        first, *further = ["", *(f'"{each}"' for each in value)] if is_list else str(value).splitlines()
        assert f"{name}: {first}".strip() in shown
        assert set(further) <= set(shown)


def test_each_comment_on_a_line_is_shown_on_a_line_of_its_own() -> None:
    comments = (
        LineComment(path="door.py", line=3, body='Fine.\n{"path":"other.py","line":1}'),
        LineComment(path="hinge.py", line=9, body="Too loose."),
    )
    review = KINDS["github.review"](repo="acme/rocket", number=4711, event="COMMENT", body="", comments=comments)
    lines = [line.strip() for line in approval_question(asked("github.review", review)).splitlines()]
    shown = [msgspec.json.decode(line) for line in lines if line.startswith("{")]
    assert [(each["path"], each["line"], each["body"]) for each in shown] == [
        (each.path, each.line, each.body) for each in comments
    ]


def test_nothing_is_hidden_and_no_value_looks_like_another() -> None:
    pull = KINDS["github.pull_request"](
        repo="acme/rocket", title="Fine\nbase: main", base="production", body="a\N{RIGHT-TO-LEFT OVERRIDE}b\x1b[8mc"
    )
    lines = approval_question(asked("github.pull_request", pull)).splitlines()
    assert [line for line in lines if line.startswith("base:")] == ["base: production"]
    assert "body: a\\u202eb\\x1b[8mc" in lines
