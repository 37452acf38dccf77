"""The parts that show what agents wrote: transcripts, changes and reports. None of it becomes markup."""

import pytest

from kingdom.clock import utc_now
from kingdom.soldiers.host.run_diffs import TreeDiff
from kingdom.views.transcripts import TranscriptLine
from kingdom.web.api.transcripts import TranscriptPart
from kingdom.web.pages.diffs import show_diffs
from kingdom.web.pages.frame import render
from kingdom.web.pages.transcript import show_lines
from kingdom.workflow.model.status import WorkflowStatus
from tests.integration.web.scene import make_run
from tests.integration.web.test_pages import KNOWN_TAGS, Tags
from tests.integration.web.test_render_cost import list_of
from tests.web.payloads import PAYLOADS

HOSTILE = " ".join(PAYLOADS)
# Every kind of entry, with a hostile text in each of its fields.
FIELDS = ("text", "reply", "agent", "model", "tool", "detail", "question", "answer", "reason", "kind")
KINDS = (
    *("session", "prompt", "said", "tool", "output", "petition", "asked", "answered", "failed", "interrupted"),
    *("noted", "ended", HOSTILE),
)


def assert_only_text(page: str) -> None:
    """Assert that a page has only known tags, no attribute that executes, and no invisible character."""
    tags = Tags()
    tags.feed(page)
    assert {name for name, _ in tags.found} <= KNOWN_TAGS
    assert not [name for _, names in tags.found for name in names if name.startswith("on") or name == "style"]
    assert not set(page) & set("\u202e\u2066\u200b\x1b\u2028")
    assert "alert" in page, "the text is shown"


@pytest.mark.parametrize("kind", KINDS, ids=range(len(KINDS)))
def test_an_entry_of_a_transcript_is_text(kind: str) -> None:
    entry = {"type": kind, "at": HOSTILE, "choices": [HOSTILE], "body": {HOSTILE: HOSTILE}}
    entry |= dict.fromkeys(FIELDS, HOSTILE)
    line = TranscriptLine(soldier=HOSTILE, work_id="w", next_offset=7, entry=entry)
    part = TranscriptPart(soldier=HOSTILE, soldiers=[HOSTILE, "b"], items=[line], next=7, notes=[HOSTILE])
    lines = list(show_lines(part.items))
    assert_only_text(render("transcript.html", run_id=HOSTILE, part=part, lines=lines, is_first=True))
    assert_only_text(render("transcript.html", run_id=HOSTILE, part=part, lines=lines, is_first=False))


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
def test_a_diff_its_branch_and_its_paths_are_text(payload: str) -> None:
    diff = f"diff --git a/{payload} b/{payload}\n{payload}\n@@ {payload} @@\n+{payload}\n-{payload}\n {payload} alert\n"
    tree = TreeDiff(
        work_tree_id=payload, git_id=payload, branch=payload, since=payload, until=payload, diff=diff, note=payload
    )
    assert_only_text(render("diff.html", diffs=show_diffs([tree])))


@pytest.mark.parametrize("character", ["\f", "\x1c", "\x85", "\u2028"])
def test_a_line_of_a_diff_cannot_look_like_another_file(character: str) -> None:
    diff = f"diff --git a/x b/x\n@@ -0,0 +1,2 @@\n+one{character}diff --git a/y b/y\n+two\r\n"
    tree = TreeDiff(work_tree_id="w", git_id="g", branch="b", since="s", until="u", diff=diff, note="")
    [shown] = show_diffs([tree])
    assert [(file.path, file.added) for file in shown.files] == [("x", 2)]
    assert shown.files[0].lines[-1] == ("add", "+two")


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
def test_the_id_of_a_run_and_the_name_of_its_general_are_text(payload: str) -> None:
    run = make_run(payload, WorkflowStatus.FAILED, payload, title="", reason=f"alert {payload}", at=utc_now())
    assert_only_text(list_of([run]))
