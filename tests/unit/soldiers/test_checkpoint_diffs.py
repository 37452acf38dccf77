"""Stored diffs of checkpoints: bounded, and without any part of a secret before the cut."""

from pathlib import Path
from typing import cast

import pytest

from kingdom.errors import ProgramFailed
from kingdom.soldiers.checkouts.run_checkouts import CheckoutSpec, RunCheckouts
from kingdom.soldiers.host import checkpoint_diffs
from kingdom.soldiers.host.checkpoint_diffs import CheckpointDiff, copy_diffs, read_diff
from kingdom.soldiers.redaction import Redaction
from tests.fakes.run_texts import MemoryTexts

RUN, POINT, TREE = "wf-1", "wf-1-w1-c1", "wf-1-tree1"
PHRASE = "swordfish-of-the-store"
SPEC = CheckoutSpec(
    id=TREE, git_id="app", url="url", checkpoint_remote="", base_branch="main", branch="b", path=Path("path")
)


class OneDiff:
    """Checkouts whose only diff is a text."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def base_commit(self, tree: CheckoutSpec) -> str:
        del tree
        return "base"

    async def diff_commits(self, tree: CheckoutSpec, since: str, until: str, at_most: int) -> str:
        del tree, since, until
        if not self._text:
            raise ProgramFailed("git failed")
        return self._text.encode()[:at_most].decode(errors="replace")


async def stored(text: str) -> CheckpointDiff | None:
    texts, redaction = MemoryTexts(), Redaction([PHRASE])
    checkouts = cast("RunCheckouts", OneDiff(text))
    await copy_diffs(texts, checkouts, redaction, RUN, POINT, [SPEC], {TREE: "tip"}, {})
    return await read_diff(texts, RUN, POINT, TREE, "base")


async def test_no_part_of_a_secret_is_left_wherever_the_diff_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_diffs, "DIFF_BYTES_MAX", 60)
    monkeypatch.setattr(checkpoint_diffs, "MARGIN_BYTES", 30)
    for before in range(100):
        found = await stored(f"{'x' * before}{PHRASE}{'y' * 100}")
        assert found is not None
        assert found.is_cut
        assert len(found.diff) <= 60
        assert "sw" not in found.diff, before


async def test_a_diff_that_fits_is_whole() -> None:
    assert await stored("+é\n") == CheckpointDiff(since="base", until="tip", diff="+é\n")


async def test_a_diff_that_cannot_be_made_does_not_fail_the_checkpoint() -> None:
    assert await stored("") is None
