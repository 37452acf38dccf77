"""The transcripts and diffs of a run that a host copies to a shared store."""

from functools import partial

import pytest

from kingdom.soldiers.host import host as hosting
from kingdom.soldiers.host.checkpoint_diffs import read_diff
from kingdom.soldiers.redaction import REDACTED
from kingdom.soldiers.transcripts import copier as copying
from kingdom.workflow.model.references import McpServerRef
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport
from kingdom.workflow.model.run.work import soldier_of
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.registry import register_mcp_server
from tests.fakes.run_texts import MemoryTexts
from tests.integration.soldiers.host_scene import ANNA, APP, HostScene, task, work, writes
from tests.patience import PATIENCE_SECONDS

ONE_BACKEND = pytest.mark.parametrize("backend", ["files"], indirect=True)


@ONE_BACKEND
async def test_when_a_run_has_ended_its_transcripts_and_diffs_are_in_the_store(
    scene: HostScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_FLUSH_SECONDS", PATIENCE_SECONDS)
    # The copier copies only at the end of a session.
    monkeypatch.setattr(hosting, "TranscriptCopier", partial(copying.TranscriptCopier, every=3600))
    texts = MemoryTexts()
    await scene.start_host(texts=texts)
    run = await scene.until(await scene.begin(writes("one"), writes("two")), WorkflowStatus.COMPLETED)
    for each in run.works:
        soldier = soldier_of(each.agent.session or "")
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
async def test_secrets_of_copied_files_and_mcp_servers_are_in_no_stored_diff(scene: HostScene) -> None:
    environment, texts = scene.copy_env_file("DB_PASSWORD=hunter2hunter2\n"), MemoryTexts()
    tracker = McpServer(id="tracker", name="tracker", transport=McpTransport.STDIO, command=("tracker",))
    await register_mcp_server(scene.bus, tracker, actor=ANNA)
    ref = McpServerRef(mcp_server_id=tracker.id, env={"TRACKER_TOKEN": "sesame-of-the-tracker"})
    leak = task({"write": f"{APP}/leak.txt", "text": "hunter2hunter2\nsesame-of-the-tracker\n"})
    await scene.start_host(texts=texts, agent_environment=environment)
    # The second Work does not use the server, but its diff since the base has what the first one wrote.
    works = (work("leak", leak, mcp_server_refs=(ref,)), writes("later"))
    run = await scene.until(await scene.begin(*works), WorkflowStatus.COMPLETED)
    for checkpoint in run.checkpoints:
        stored = await read_diff(texts, run.id, checkpoint.id, run.work_trees[0].id, "base")
        assert stored
        assert f"\n+{REDACTED}\n+{REDACTED}\n" in stored.diff


@ONE_BACKEND
async def test_a_store_that_does_not_answer_delays_no_agent(scene: HostScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_FLUSH_SECONDS", 0.05)
    texts = MemoryTexts(hangs=True)
    await scene.start_host(texts=texts)
    run = await scene.until(await scene.begin(writes("one")), WorkflowStatus.COMPLETED)
    assert texts.waited
    assert not any(name.startswith("soldier-") and text for (_, name), text in texts.texts.items())
    # Readers still use the file, and the session still has to be copied.
    assert scene.transcript(run.works[0])
    assert [each.name for each in scene.folders().copying.iterdir()] == [soldier_of(run.works[0].agent.session or "")]
