"""The allowed operations of each state. Others are refused with the state and the allowed ones."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kingdom.errors import IllegalTransition, Permanent
from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.run.workflow import Placement
from kingdom.workflow.model.status import OPERATIONS, QUERY, QueryStatus, WorkflowStatus
from kingdom.workflow.model.steps.modify import Modification, modify
from kingdom.workflow.model.steps.operations import (
    Auto,
    Continue,
    cancel,
    delete,
    pause,
    prepare,
    release,
    resume,
    start,
)
from kingdom.workflow.model.steps.placement import place
from tests.unit.workflow.model.host import ask
from tests.unit.workflow.model.scene import Run, ready, running, started


def preparing() -> Run:
    run = Run()
    run.do(prepare)
    return run


def paused() -> Run:
    run = running()
    run.do(pause)
    run.succeed(commands.StopAgent)
    return run


def awaiting() -> Run:
    run = running()
    run.receive(ask(run.take(commands.SendQuery)))
    run.succeed(commands.StopAgent)
    return run


def resuming() -> Run:
    run = paused()
    run.do(resume, Auto())
    return run


def failed() -> Run:
    run = started()
    run.fail(commands.StartAgent)
    return run


def completed() -> Run:
    run = started()
    run.finish()
    return run


def cancelled() -> Run:
    run = Run()
    run.do(cancel)
    return run


IN_STATE: Mapping[WorkflowStatus, Callable[[], Run]] = {
    WorkflowStatus.CREATED: Run,
    WorkflowStatus.PREPARING: preparing,
    WorkflowStatus.READY: ready,
    WorkflowStatus.RUNNING: running,
    WorkflowStatus.PAUSED: paused,
    WorkflowStatus.AWAITING: awaiting,
    WorkflowStatus.RESUMING: resuming,
    WorkflowStatus.COMPLETED: completed,
    WorkflowStatus.FAILED: failed,
    WorkflowStatus.CANCELLED: cancelled,
}
ASK: Mapping[str, tuple[Any, ...]] = {
    "place": (place, Placement(host="host-a", epoch=2)),
    "prepare": (prepare,),
    "start": (start,),
    "pause": (pause,),
    "resume": (resume, Continue()),
    "cancel": (cancel,),
    "modify": (modify, Modification(mcp_server_refs=())),
    "release": (release,),
    "delete": (delete,),
}
# The guards as documented for users, repeated here so that a change of the table fails a test.
ALLOWED = {
    "prepare": "CREATED",
    "start": "CREATED READY",
    "pause": "RUNNING",
    "resume": "PAUSED AWAITING FAILED",
    "cancel": "CREATED PREPARING READY RUNNING PAUSED AWAITING RESUMING FAILED",
    "place": "CREATED PREPARING READY RUNNING PAUSED AWAITING RESUMING FAILED",
    "modify": "CREATED READY RUNNING PAUSED AWAITING FAILED",
    "release": "COMPLETED CANCELLED",
    "delete": "CREATED COMPLETED FAILED CANCELLED",
}


def test_every_operation_is_tested_here() -> None:
    assert ASK.keys() == ALLOWED.keys() == OPERATIONS.keys()


@pytest.mark.parametrize("status", WorkflowStatus)
@pytest.mark.parametrize("operation", ASK)
def test_an_operation_is_allowed_exactly_in_its_states(operation: str, status: WorkflowStatus) -> None:
    run = IN_STATE[status]()
    assert run.workflow.status is status
    if status in ALLOWED[operation].split():
        run.do(*ASK[operation])
        return
    before = run.workflow.document()
    with pytest.raises(IllegalTransition, match=f"workflow wf-1 is {status}: cannot {operation} it") as refusal:
        run.do(*ASK[operation])
    assert run.workflow.document() == before
    asked_by_people = ALLOWED.keys() - {"place"}
    assert refusal.value.allowed == tuple(sorted(name for name in asked_by_people if status in ALLOWED[name].split()))


def test_a_refusal_shows_what_is_allowed_instead() -> None:
    with pytest.raises(IllegalTransition) as refusal:
        paused().do(pause)
    assert str(refusal.value) == ("workflow wf-1 is PAUSED: cannot pause it; allowed now: cancel, modify, resume")
    assert isinstance(refusal.value, Permanent)


def test_a_final_state_shows_that_nothing_follows() -> None:
    with pytest.raises(IllegalTransition, match="Query q is CANCELLED: it cannot become SENT; allowed now: nothing"):
        QUERY.check("q", QueryStatus.CANCELLED, QueryStatus.SENT)


@pytest.mark.parametrize("operation", ASK)
def test_no_operation_is_allowed_on_a_deleted_run(operation: str) -> None:
    run = completed()
    run.do(delete)
    with pytest.raises(IllegalTransition, match="workflow wf-1 is DELETED"):
        run.do(*ASK[operation])


def test_deleting_a_run_publishes_its_events_and_releases_its_checkouts() -> None:
    run = completed()
    assert run.do(delete) == ["WorkTreePendingRelease", "WorkTreePendingRelease", "WorkflowDeleted"]
    assert run.commanded() == ["ReleaseWorkTree", "ReleaseWorkTree"]
    run.finish()


def test_a_host_is_asked_once_to_remove_a_checkout() -> None:
    run = completed()
    run.do(release)
    assert run.commanded() == ["ReleaseWorkTree", "ReleaseWorkTree"]
    run.do(delete)
    assert run.commanded() == ["ReleaseWorkTree", "ReleaseWorkTree"]


def test_a_run_without_a_host_cannot_be_prepared_or_started() -> None:
    for operation in (prepare, start):
        with pytest.raises(IllegalTransition, match=r"workflow wf-1 is without a host: .*allowed now: place"):
            Run(placed=False).do(operation)
