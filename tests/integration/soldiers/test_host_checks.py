"""A checkpoint holds exactly the files that were checked."""

import pytest

from kingdom.workflow.model.status import WorkflowStatus
from tests.integration.soldiers.host_scene import APP, HostScene, task, work
from tests.integration.soldiers.sources import run

POLICY = f"{APP}/policy.txt"


@pytest.mark.parametrize("backend", ["files"], indirect=True)
async def test_processes_left_by_an_agent_change_nothing_while_its_work_is_checked(scene: HostScene) -> None:
    await scene.start_host()
    go = scene.folder / "go"
    late = f"(until test -e {go}; do sleep 0.01; done; echo everybody > {POLICY}) >/dev/null 2>&1 &"
    script = task({"write": POLICY, "text": "nobody\n"}, {"run": late})
    check = f"touch {go}; n=0; while grep -q nobody {POLICY} && test $n -lt 30; do sleep 0.01; n=$((n+1)); done"
    begun = await scene.begin(work("change", script, verify=(check, f"grep -q nobody {POLICY}")))
    done = await scene.until(begun, WorkflowStatus.COMPLETED)
    (commit,) = done.checkpoints[0].commits.values()
    assert run("show", f"{commit}:policy.txt", cwd=scene.bare()) == "nobody"
    assert (scene.tree(done) / "policy.txt").read_text() == "nobody\n"


@pytest.mark.parametrize("backend", ["files"], indirect=True)
async def test_a_check_that_changes_a_checked_file_fails_and_names_it(scene: HostScene) -> None:
    await scene.start_host()
    script = task({"write": POLICY, "text": "nobody\n"})
    checks = (f"grep -q nobody {POLICY}", f"echo everybody > {POLICY}")
    failed = await scene.until(await scene.begin(work("change", script, verify=checks)), WorkflowStatus.FAILED)
    assert f"passed, but changed the files it checked: {POLICY}" in failed.works[0].verification.error
    assert failed.checkpoints == []
