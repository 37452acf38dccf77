"""What a host copies to a store that several hosts share, seen by a run."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import pytest

from kingdom.soldiers.host import host as hosting
from kingdom.soldiers.host.checkpoint_diffs import read_diff
from kingdom.soldiers.transcripts import copier as copying
from kingdom.storage.run_texts import RunTexts, TextExtent, TextPiece
from kingdom.workflow.model.run.work import soldier_of
from kingdom.workflow.model.status import WorkflowStatus
from tests.integration.soldiers.host_scene import HostScene, writes
from tests.patience import PATIENCE_SECONDS

DIFF = "diff/"
ONE_BACKEND = pytest.mark.parametrize("backend", ["files"], indirect=True)


class MemoryTexts(RunTexts):
    """Texts in memory. While `hangs`, pieces of transcripts wait forever, as for a database without an answer."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.texts: dict[tuple[str, str], list[TextPiece]] = defaultdict(list)
        self.waited = 0
        self._hangs = hangs

    async def append(self, run: str, name: str, pieces: Sequence[TextPiece]) -> int:
        if self._hangs and not name.startswith(DIFF):
            self.waited += 1
            await asyncio.Event().wait()
        text = self.texts[run, name]
        if not text or text[-1].end <= pieces[0].start:
            text.extend(pieces)
        return text[-1].end

    async def extents(self, run: str) -> dict[str, TextExtent]:
        found = {name: text for (of, name), text in self.texts.items() if of == run and text}
        return {
            name: TextExtent(start=text[0].start, end=text[-1].end, is_cut=text[-1].is_cut)
            for name, text in found.items()
        }

    async def read(self, run: str, name: str, after: int, limit: int) -> list[TextPiece]:
        return [piece for piece in self.texts[run, name] if piece.end > after][:limit]


@ONE_BACKEND
async def test_when_a_run_has_ended_its_transcripts_and_diffs_are_in_the_store(
    scene: HostScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_FLUSH_SECONDS", PATIENCE_SECONDS)
    # Only the end of a session is left to copy anything.
    monkeypatch.setattr(hosting, "TranscriptCopier", partial(copying.TranscriptCopier, every=3600))
    texts = MemoryTexts()
    await scene.start_host(texts=texts)
    run = await scene.until(await scene.begin(writes("one"), writes("two")), WorkflowStatus.COMPLETED)
    for work in run.works:
        soldier = soldier_of(work.agent.session or "")
        copy = b"".join(piece.content for piece in await texts.read(run.id, soldier, 0, 1000))
        assert copy == scene.folders().transcript(soldier).read_bytes()
    first, second = run.checkpoints
    (tree,) = run.work_trees
    since_base = await read_diff(texts, run.id, second.id, tree.id, "base")
    assert since_base is not None
    assert "+by one" in since_base.diff
    assert "+by two" in since_base.diff
    since_first = await read_diff(texts, run.id, second.id, tree.id, "previous")
    assert since_first is not None
    assert (since_first.since, since_first.until) == (first.commits[tree.id], second.commits[tree.id])
    assert "+by one" not in since_first.diff
    assert "+by two" in since_first.diff
    of_first = await read_diff(texts, run.id, first.id, tree.id, "previous")
    assert of_first == await read_diff(texts, run.id, first.id, tree.id, "base")
    assert await read_diff(texts, run.id, "another", tree.id, "base") is None


@ONE_BACKEND
async def test_a_store_that_does_not_answer_delays_no_agent(scene: HostScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_FLUSH_SECONDS", 0.05)
    texts = MemoryTexts(hangs=True)
    await scene.start_host(texts=texts)
    run = await scene.until(await scene.begin(writes("one")), WorkflowStatus.COMPLETED)
    assert texts.waited
    assert not any(name.startswith("soldier-") and text for (_, name), text in texts.texts.items())
    # The file stays the first truth, and the session is still to be copied.
    assert scene.transcript(run.works[0])
    assert [each.name for each in scene.folders().copying.iterdir()] == [soldier_of(run.works[0].agent.session or "")]
