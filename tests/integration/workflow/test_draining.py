"""A drained host keeps its runs until they end, and gets no new ones."""

from functools import partial

import pytest

from kingdom.errors import Transient
from kingdom.workflow import lifecycle
from kingdom.workflow.hosts import set_drained
from kingdom.workflow.model.run.workflow import Placement
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import run_transaction
from kingdom.workflow.relocation import undrain_host
from tests.integration.workflow.scene import ANNA, Scene
from tests.integration.workflow.test_placement import WORKS, in_second_work
from tests.unit.workflow.model.scene import APP, template


async def test_a_drained_host_keeps_its_runs_and_gets_no_new_ones_until_it_is_undrained(scene: Scene) -> None:
    await scene.start_host("host-a")
    kept = await in_second_work(scene, APP)
    async with scene.bus.transaction() as transaction:
        await set_drained(transaction, "host-a", drained=True, actor=ANNA)
    run = await scene.create_run(template(*WORKS, git_refs=(APP,)))
    with pytest.raises(Transient, match="kingdom host undrain"):
        await lifecycle.start(scene.bus, run, actor=ANNA)
    assert (await scene.finish(kept)).status is WorkflowStatus.COMPLETED
    # A restart of the host does not undrain it.
    again = await scene.start_host("host-a")
    assert again.drained
    await scene.start_host("host-b")
    await lifecycle.start(scene.bus, run, actor=ANNA)
    assert (await scene.show(run)).placement == Placement(host="host-b", epoch=1)
    for _ in range(2):
        assert not (await run_transaction(scene.bus, partial(undrain_host, host_id="host-a", actor=ANNA))).drained
    said = [(entry.type, entry.actor) for entry in await scene.log() if entry.type.startswith("host.")]
    assert said == [("host.drained", ANNA), ("host.undrained", ANNA)]
