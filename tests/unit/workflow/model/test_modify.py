"""Unstarted parts of a run can be changed, and started ones cannot."""

import msgspec
import pytest

from kingdom.errors import IllegalTransition, Misconfigured, NotFound
from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.messages.events import (
    WorkflowGitRefsUpdated,
    WorkflowMcpServerRefsUpdated,
    WorkflowWorksUpdated,
)
from kingdom.workflow.model.references import GitRef, McpServerRef
from kingdom.workflow.model.resources.template import WorkDefinition
from kingdom.workflow.model.status import WorkflowStatus, WorkTreeStatus
from kingdom.workflow.model.steps.modify import Modification, WorkChange, modify
from kingdom.workflow.model.steps.operations import Auto, Continue, cancel, pause, prepare, resume, start
from tests.unit.workflow.model.host import fail
from tests.unit.workflow.model.scene import APP, DOCS, LIB, Run, ready, running, started, task, template, work

TOOLS = McpServerRef(mcp_server_id="mcp-tools")
TYPO = GitRef(git_id="git-typo", base_branch="mian")
SECRET = McpServerRef(mcp_server_id="mcp-tools", env={"TOKEN": "s3cr3t"})


def works(run: Run) -> list[WorkChange]:
    return [WorkChange(id=each.id, definition=each.definition) for each in run.workflow.works]


def changed(run: Run, index: int, definition: WorkDefinition) -> Modification:
    wanted = works(run)
    wanted[index] = WorkChange(id=wanted[index].id, definition=definition)
    return Modification(works=tuple(wanted))


def paused() -> Run:
    """Return a run that is paused between the two tasks of its first Work."""
    run = running()
    run.do(pause)
    run.succeed(commands.SendQuery)
    run.succeed(commands.StopAgent)
    return run


def tree(run: Run, ref: GitRef) -> WorkTreeStatus:
    return [each.status for each in run.workflow.work_trees if each.ref == ref][-1]


def test_works_to_come_can_be_added_removed_changed_and_reordered_while_the_first_runs() -> None:
    run = running()
    one, two, three = works(run)
    two = WorkChange(id=two.id, definition=work("build better"))
    new = WorkChange(definition=work("deploy"))
    assert run.do(modify, Modification(works=(one, new, two))) == ["WorkflowWorksUpdated"]
    assert run.published[-1] == WorkflowWorksUpdated(
        workflow_id="wf-1",
        added_work_ids=("wf-1-w4",),
        removed_work_ids=(three.id or "",),
        changed_work_ids=("wf-1-w2",),
    )
    assert [each.definition.name for each in run.workflow.works] == ["analyse", "deploy", "build better"]
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_a_changed_order_alone_is_reported_too() -> None:
    run = running()
    one, two, three = works(run)
    assert run.do(modify, Modification(works=(one, three, two))) == ["WorkflowWorksUpdated"]


def test_a_work_that_runs_keeps_its_definition_and_its_place() -> None:
    run = running()
    before = run.workflow.document()
    with pytest.raises(IllegalTransition, match="work wf-1-w1 of workflow wf-1 is RUNNING: a work that has started"):
        run.do(modify, changed(run, 0, work("other")))
    with pytest.raises(IllegalTransition, match="a work that has started keeps its place"):
        run.do(modify, Modification(works=tuple(reversed(works(run)))))
    with pytest.raises(IllegalTransition, match="keeps its place"):
        run.do(modify, Modification(works=tuple(works(run)[1:])))
    assert run.workflow.document() == before


def test_unstarted_tasks_of_a_stopped_work_can_be_changed() -> None:
    run = paused()
    run.do(modify, changed(run, 0, work("analyse", task("first"), task("another"), task("third"))))
    assert [each.id for each in run.work(0).tasks] == ["wf-1-w1-t1", "wf-1-w1-t3", "wf-1-w1-t4"]
    run.do(resume, Continue())
    run.succeed(commands.StartAgent)
    assert run.take(commands.SendQuery).query == "another"


@pytest.mark.parametrize("definition", [work("analyse", task("else")), work("analyse", model="other"), work("renamed")])
def test_nothing_else_of_a_stopped_work_can_be_changed(definition: WorkDefinition) -> None:
    run = paused()
    with pytest.raises(IllegalTransition, match="work wf-1-w1 of workflow wf-1 is PAUSED"):
        run.do(modify, changed(run, 0, definition))


def test_the_checks_and_limits_of_a_stopped_work_can_be_changed() -> None:
    run = started()
    run.until(commands.VerifyWork, 0)
    run.fail(commands.VerifyWork)
    run.finish()
    definition = msgspec.structs.replace(run.work(0).definition, verify=("true",), timeout_seconds=7)
    run.do(modify, changed(run, 0, definition))
    run.do(resume, Continue())
    run.succeed(commands.StartAgent)
    assert run.take(commands.VerifyWork).commands == ("true",)


def test_a_failed_task_can_be_changed_and_is_asked_again() -> None:
    run = started()
    run.until(commands.SendQuery)
    run.fail(commands.SendQuery)
    run.finish()
    run.do(modify, changed(run, 0, work("analyse", task("better"), task("second"))))
    run.do(resume, Continue())
    run.succeed(commands.StartAgent)
    sent = run.until(commands.SendQuery)
    assert (sent.query, sent.task_id, sent.attempt) == ("better", "wf-1-w1-t3", 1)
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_a_completed_work_cannot_be_changed() -> None:
    run = running()
    run.until(commands.SendQuery, 1)
    run.do(pause)
    run.finish()
    with pytest.raises(IllegalTransition, match="work wf-1-w1 of workflow wf-1 is COMPLETED"):
        run.do(modify, changed(run, 0, work("analyse", task("first"), task("second"), task("third"))))


def test_tasks_that_stay_keep_their_ids() -> None:
    run = Run()
    run.do(modify, changed(run, 1, work("build", task("second"), task("new"))))
    assert [each.id for each in run.work(1).tasks] == ["wf-1-w2-t2", "wf-1-w2-t3"]


def test_an_invalid_list_is_refused() -> None:
    run = Run()
    with pytest.raises(Misconfigured, match="needs at least one work"):
        run.do(modify, Modification(works=()))
    with pytest.raises(NotFound, match="has no work nope; it has: wf-1-w1, wf-1-w2, wf-1-w3"):
        run.do(modify, Modification(works=(WorkChange(id="nope", definition=work("x")),)))
    with pytest.raises(Misconfigured, match="named twice"):
        run.do(modify, Modification(works=(works(run)[0], works(run)[0])))
    with pytest.raises(Misconfigured, match="git-app is referred to twice"):
        run.do(modify, Modification(git_refs=(APP, GitRef(git_id="git-app", base_branch="dev"))))


def test_a_ready_run_prepares_again_when_a_repository_is_added() -> None:
    run = ready()
    assert run.do(modify, Modification(git_refs=(APP, LIB, DOCS))) == [
        "WorkflowGitRefsUpdated",
        "WorkflowStatusChanged",
    ]
    assert run.status() is WorkflowStatus.PREPARING
    assert [each.git_id for each in run.until(commands.PrepareResources).trees] == ["git-docs"]
    run.succeed(commands.PrepareResources)
    assert run.workflow.status is WorkflowStatus.READY


def test_additions_and_removals_are_reported() -> None:
    run = ready()
    run.do(modify, Modification(git_refs=(APP, DOCS)))
    updated = [event for event in run.published if isinstance(event, WorkflowGitRefsUpdated)]
    assert updated == [WorkflowGitRefsUpdated(workflow_id="wf-1", added_refs=(DOCS,), removed_refs=(LIB,))]


def test_a_repository_added_while_running_is_checked_out_before_the_next_work_starts() -> None:
    run = running()
    run.do(modify, Modification(git_refs=(APP, LIB, DOCS)))
    prepare_docs = run.take(commands.PrepareResources)
    run.finish()
    assert (run.workflow.status, run.work(1).has_started) == (WorkflowStatus.RUNNING, False)
    run.open.append(prepare_docs)
    run.succeed(commands.PrepareResources)
    assert run.until(commands.StartAgent).work_tree_ids == ("wf-1-tree1", "wf-1-tree2", "wf-1-tree3")


def test_a_run_does_not_end_before_a_repository_added_to_it_is_checked_out() -> None:
    run = started(template(work("analyse")))
    run.do(modify, Modification(git_refs=(APP, LIB, DOCS)))
    prepare_docs = run.take(commands.PrepareResources)
    run.finish()
    assert run.status() is WorkflowStatus.RUNNING
    run.open.append(prepare_docs)
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_a_retried_agent_waits_for_a_repository_added_in_the_meantime() -> None:
    run = started(retries=1)
    run.do(modify, Modification(git_refs=(APP, LIB, DOCS)))
    run.fail(commands.StartAgent)
    assert run.commanded() == ["PrepareResources"]
    run.succeed(commands.PrepareResources)
    assert run.take(commands.StartAgent).work_tree_ids == ("wf-1-tree1", "wf-1-tree2", "wf-1-tree3")


def test_a_repository_that_the_running_work_uses_is_released_only_at_the_end() -> None:
    run = running()
    assert run.do(modify, Modification(git_refs=(APP,))) == ["WorkflowGitRefsUpdated", "WorkTreePendingRelease"]
    assert tree(run, LIB) is WorkTreeStatus.PENDING_RELEASE
    assert run.until(commands.StartAgent, 1).work_tree_ids == ("wf-1-tree1",)
    assert "ReleaseWorkTree" not in run.commanded()
    run.until(commands.ReleaseWorkTree)
    assert run.workflow.status is WorkflowStatus.COMPLETED
    run.succeed(commands.ReleaseWorkTree)
    assert tree(run, LIB) is WorkTreeStatus.RELEASED
    assert tree(run, APP) is WorkTreeStatus.READY


def test_a_repository_that_no_running_work_uses_is_released_at_once() -> None:
    run = started(template(work("analyse"), work("build", git_refs=(DOCS,)), git_refs=(APP,)))
    run.succeed(commands.StartAgent)
    run.do(modify, changed(run, 1, work("build")))
    assert run.take(commands.ReleaseWorkTree).work_tree_id == "wf-1-tree2"


def test_a_failed_run_keeps_its_checkouts_except_those_no_longer_wanted() -> None:
    run = running()
    run.do(modify, Modification(git_refs=(APP,)))
    run.fail(commands.SendQuery)
    run.succeed(commands.StopAgent)
    assert run.workflow.status is WorkflowStatus.FAILED
    assert run.commanded() == ["ReleaseWorkTree"]
    assert tree(run, APP) is WorkTreeStatus.READY


def test_a_repository_that_only_a_failed_work_used_is_released_at_once() -> None:
    run = running()
    run.fail(commands.SendQuery)
    run.succeed(commands.StopAgent)
    run.do(modify, Modification(git_refs=(APP,)))
    assert run.commanded() == ["ReleaseWorkTree"]


def test_a_repository_added_again_before_its_release_is_simply_kept() -> None:
    run = running()
    run.do(modify, Modification(git_refs=(APP,)))
    run.do(modify, Modification(git_refs=(APP, LIB)))
    assert tree(run, LIB) is WorkTreeStatus.READY
    assert len(run.workflow.work_trees) == 2


def test_a_repository_added_again_after_its_release_gets_a_new_branch() -> None:
    run = ready()
    run.do(modify, Modification(git_refs=(APP,)))
    run.finish()
    run.do(modify, Modification(git_refs=(APP, LIB)))
    assert [each.branch for each in run.workflow.work_trees if each.ref == LIB] == [
        "kingdom/wf-1/fix-the-bug",
        "kingdom/wf-1/fix-the-bug-3",
    ]
    run.finish()
    run.do(start)
    assert run.take(commands.StartAgent).work_tree_ids == ("wf-1-tree1", "wf-1-tree3")


def test_a_broken_repository_can_be_replaced_before_the_next_try() -> None:
    run = Run()
    run.do(prepare)
    run.fail(commands.PrepareResources)
    run.do(modify, Modification(git_refs=(APP,)))
    run.do(resume, Auto())
    assert [each.git_id for each in run.until(commands.PrepareResources).trees] == ["git-app"]
    run.succeed(commands.PrepareResources)
    assert run.workflow.status is WorkflowStatus.READY


def test_mcp_servers_of_a_later_work_change_with_its_next_start() -> None:
    run = running()
    assert run.do(modify, Modification(mcp_server_refs=(TOOLS,))) == ["WorkflowMcpServerRefsUpdated"]
    assert run.until(commands.StartAgent, 1).mcp_server_refs == (TOOLS,)


def test_events_and_commands_about_mcp_servers_contain_no_secrets() -> None:
    run = running()
    run.do(modify, Modification(mcp_server_refs=(SECRET,)))
    assert WorkflowMcpServerRefsUpdated(workflow_id="wf-1", added_refs=("mcp-tools",), removed_refs=()) in run.published
    assert run.until(commands.StartAgent, 1).mcp_server_refs == (TOOLS,)
    assert run.workflow.mcp_server_refs_of(run.work(1).definition) == (SECRET,)
    run.do(modify, Modification(mcp_server_refs=()))
    run.finish()
    assert "s3cr3t" not in repr(run.published)


def test_a_repository_that_is_removed_while_a_checkpoint_is_taken_is_released_at_the_end() -> None:
    run = started(template(work("one", task()), work("two", task(), git_refs=(LIB,)), git_refs=(APP,)))
    assert len(run.until(commands.TakeCheckpoint).work_tree_ids) == 2
    run.do(modify, changed(run, 1, work("two", task())))
    assert tree(run, LIB) is WorkTreeStatus.PENDING_RELEASE
    assert run.commanded() == ["TakeCheckpoint"]
    assert run.finish().status is WorkflowStatus.COMPLETED
    assert tree(run, LIB) is WorkTreeStatus.RELEASED


def test_a_repository_that_is_removed_before_it_is_checked_out_is_checked_out_again_if_it_returns() -> None:
    run = running()
    run.do(modify, Modification(git_refs=(APP, LIB, DOCS)))
    run.do(modify, Modification(git_refs=(APP, LIB)))
    assert run.commanded() == ["SendQuery", "PrepareResources", "ReleaseWorkTree"]
    run.do(modify, Modification(git_refs=(APP, LIB, DOCS)))
    assert [each.status for each in run.workflow.work_trees if each.ref == DOCS] == [
        WorkTreeStatus.PENDING_RELEASE,
        WorkTreeStatus.CREATING,
    ]
    assert run.until(commands.StartAgent, 1).work_tree_ids == ("wf-1-tree1", "wf-1-tree2", "wf-1-tree4")


def removed_while_it_fails() -> Run:
    """Return a run that no longer needs the repository whose checkout failed."""
    run = running()
    run.do(modify, Modification(git_refs=(APP, LIB, DOCS, TYPO)))
    failure = fail(run.take(commands.PrepareResources))
    run.do(modify, Modification(git_refs=(APP, LIB, DOCS)))
    run.receive(failure)
    return run


def test_a_failed_checkout_that_is_no_longer_needed_does_not_fail_the_run_and_the_others_are_requested_again() -> None:
    run = removed_while_it_fails()
    assert [each.git_id for each in run.until(commands.PrepareResources).trees] == ["git-docs"]
    assert run.finish().status is WorkflowStatus.COMPLETED


def test_a_run_whose_failed_checkout_is_no_longer_needed_can_be_cancelled() -> None:
    run = removed_while_it_fails()
    run.do(cancel)
    assert run.finish().status is WorkflowStatus.CANCELLED


def test_a_failed_checkout_that_is_no_longer_needed_is_ignored_if_no_other_waits() -> None:
    run = running()
    run.do(modify, Modification(git_refs=(APP, LIB, TYPO)))
    failure = fail(run.take(commands.PrepareResources))
    run.do(modify, Modification(git_refs=(APP, LIB)))
    run.receive(failure)
    assert run.ignored == "WorkTree wf-1-tree3 is PENDING_RELEASE and does not expect this answer"


def test_a_modification_that_changes_nothing_publishes_no_event() -> None:
    run = running()
    assert run.do(modify, Modification(works=tuple(works(run)), git_refs=(APP, LIB), mcp_server_refs=())) == []
