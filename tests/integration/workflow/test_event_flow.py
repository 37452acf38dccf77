"""The consequences of each event, row by row: in the log, in the stored run, and in the commands to its host."""

from kingdom.bus import Envelope
from kingdom.workflow.model.messages import answers, commands, events
from kingdom.workflow.model.run.work_tree import WorkTree
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import (
    AgentStatus,
    QueryStatus,
    ReportStatus,
    TaskStatus,
    WorkflowStatus,
    WorkStatus,
    WorkTreeStatus,
)
from kingdom.workflow.reactions import ANSWERS, REACTIONS
from kingdom.workflow.streams import ENGINE_STREAMS, TOPOLOGY
from tests.integration.workflow.history import MORE_TOOLS, TOOLS, History, Moment
from tests.unit.workflow.model.scene import APP, DOCS, LIB


def tree_of(workflow: Workflow, git_id: str) -> WorkTree:
    [tree] = [tree for tree in workflow.work_trees if tree.ref.git_id == git_id]
    return tree


def only_informs(kind: type[events.DomainEvent]) -> bool:
    """Return whether an event is only in the log, because no stream subscribes to it."""
    handled = kind in REACTIONS or kind in ANSWERS
    return not handled and not set(TOPOLOGY.route(Envelope(type=kind.__name__))) & set(ENGINE_STREAMS)


def releases_everything(moment: Moment) -> None:
    """Check that an ended run releases its Git and its MCP server, and that pending removals happen."""
    run = moment.after.id
    assert run not in moment.git_users
    assert run not in moment.server_users
    assert not moment.after.uses_resources
    pending = tree_of(moment.before, LIB.git_id)
    assert (pending.status, pending.releasing) == (WorkTreeStatus.PENDING_RELEASE, False)
    assert moment.command(commands.ReleaseWorkTree).work_tree_id == pending.id
    assert tree_of(moment.after, APP.git_id).status is WorkTreeStatus.READY


def test_row_work_status_changed__the_workflow_has_the_new_status_of_its_work(history: History) -> None:
    seen: set[str] = set()
    for moment in history.saying("WorkStatusChanged"):
        for entry in moment.logged:
            if entry.type == "WorkStatusChanged":
                before = moment.before.find_work(entry.data["workId"])
                after = moment.after.find_work(entry.data["workId"])
                assert before
                assert after
                assert after.status == entry.data["status"]
                assert before.status != after.status or "TaskCompleted" in moment.names
                seen.add(entry.data["status"])
    assert seen == set(WorkStatus)


def test_row_work_started__the_query_of_its_first_task_is_sent(history: History) -> None:
    for moment in history.saying("WorkStarted", "completed"):
        work = moment.after.find_work(moment.data("WorkStarted")["workId"])
        assert work
        command = moment.command(commands.SendQuery)
        assert (command.task_id, command.query) == (work.tasks[0].id, work.tasks[0].definition.query)
    assert len(history.saying("WorkStarted", "completed")) == 2


def test_row_work_completed__a_checkpoint_is_taken_and_then_the_next_work_starts(history: History) -> None:
    completed = history.saying("WorkCompleted", "completed")[0]
    first, second = completed.after.works
    assert completed.data("WorkCompleted")["workId"] == first.id
    assert completed.command(commands.TakeCheckpoint).work_id == first.id
    taken = history.first("CheckpointCreated", "completed")
    assert [checkpoint.work_id for checkpoint in taken.after.checkpoints] == [first.id]
    assert taken.command(commands.StartAgent).work_id == second.id


def test_row_work_tree_created__its_status_is_ready(history: History) -> None:
    for moment in history.all("WorkTreeCreated", "completed"):
        tree_id = moment.data("WorkTreeCreated")["workTreeId"]
        before, after = moment.before.find_tree(tree_id), moment.after.find_tree(tree_id)
        assert before
        assert after
        assert (before.status, after.status) == (WorkTreeStatus.CREATING, WorkTreeStatus.READY)
    one, two = history.all("WorkTreeCreated", "completed")
    assert (one.after.status, two.after.status) == (WorkflowStatus.PREPARING, WorkflowStatus.RUNNING)


def test_row_work_tree_failed__its_status_is_failed_and_so_are_those_of_its_request(history: History) -> None:
    moment = history.first("WorkTreeFailed", "tree failed")
    assert [tree.status for tree in moment.before.work_trees] == [WorkTreeStatus.READY, WorkTreeStatus.CREATING]
    assert [tree.status for tree in moment.after.work_trees] == [WorkTreeStatus.FAILED, WorkTreeStatus.FAILED]
    assert moment.after.status is WorkflowStatus.FAILED
    assert moment.data("WorkflowFailed")["reason"] == "no checkout of git-lib: broken"


def test_row_workflow_completed__usage_is_released_and_pending_checkouts_are_removed(history: History) -> None:
    [moment] = history.saying("WorkflowCompleted", "completed")
    assert moment.after.status is WorkflowStatus.COMPLETED
    releases_everything(moment)


def test_row_workflow_cancelled__usage_is_released_and_pending_checkouts_are_removed(history: History) -> None:
    [moment] = history.saying("WorkflowCancelled", "cancelled")
    assert moment.after.status is WorkflowStatus.CANCELLED
    releases_everything(moment)


def test_row_workflow_failed__usage_is_released_and_pending_checkouts_are_removed(history: History) -> None:
    [moment] = history.saying("WorkflowFailed", "failed")
    assert moment.after.status is WorkflowStatus.FAILED
    releases_everything(moment)


def test_row_work_tree_pending_release__the_status_of_its_git_is_pending_release(history: History) -> None:
    moment = history.first("modify", "completed")
    data = moment.data("WorkTreePendingRelease")
    assert data["gitId"] == LIB.git_id
    tree = tree_of(moment.after, LIB.git_id)
    assert (tree.id, tree.status) == (data["workTreeId"], WorkTreeStatus.PENDING_RELEASE)
    # The current Work uses it, so it is kept until the end.
    assert moment.sent == ()


def test_row_agent_started__the_agent_runs_and_the_work_changes_its_status(history: History) -> None:
    moment = history.first("AgentStarted", "completed")
    assert moment.before.works[0].agent.status is AgentStatus.STARTING
    assert moment.after.works[0].agent.status is AgentStatus.RUNNING
    assert moment.data("WorkStatusChanged")["status"] == WorkStatus.RUNNING
    assert moment.after.works[0].agent.session == "session-1"


def test_row_agent_stopped__the_agent_is_stopped_and_the_work_changes_its_status(history: History) -> None:
    moment = history.first("AgentStopped", "resumed")
    assert moment.before.works[0].agent.status is AgentStatus.RUNNING
    assert moment.after.works[0].agent.status is AgentStatus.STOPPED
    assert moment.data("WorkStatusChanged")["status"] == WorkStatus.PAUSED


def test_row_agent_error__the_agent_is_in_error_the_work_changes_its_status_and_the_workflow_failed(
    history: History,
) -> None:
    moment = history.first("AgentError", "failed")
    assert moment.after.works[0].agent.status is AgentStatus.ERROR
    assert moment.data("WorkStatusChanged")["status"] == WorkStatus.FAILED
    assert moment.data("WorkflowFailed")["reason"] == "the agent crashed"


def test_row_task_started__only_informs(history: History) -> None:
    assert only_informs(events.TaskStarted)
    moment = history.first("AgentStarted", "completed")
    task = moment.after.works[0].tasks[0]
    assert (moment.data("TaskStarted")["taskId"], task.status) == (task.id, TaskStatus.RUNNING)


def test_row_query_responded__with_an_outline_its_report_is_begun(history: History) -> None:
    moment = history.first("QueryResponded", "completed")
    task = moment.after.works[0].tasks[0]
    assert (task.query.status, task.report.status) == (QueryStatus.RESPONDED, ReportStatus.GENERATING)
    command = moment.command(commands.GenerateReport)
    assert (command.report_id, command.report_outline) == (task.report.id, task.definition.report_outline)
    assert "TaskCompleted" not in moment.names


def test_row_query_responded__without_an_outline_its_task_is_completed(history: History) -> None:
    moment = history.all("QueryResponded", "completed")[1]
    task = moment.after.works[0].tasks[1]
    assert (task.report.status, task.status) == (ReportStatus.NOT_REQUIRED, TaskStatus.COMPLETED)
    assert moment.data("TaskCompleted")["taskId"] == task.id


def test_row_query_failed__the_query_failed_and_the_work_changes_its_status(history: History) -> None:
    moment = history.first("QueryFailed", "query failed")
    query = moment.after.works[0].tasks[0].query
    assert (query.status, query.error) == (QueryStatus.FAILED, "broken")
    assert moment.data("WorkStatusChanged")["status"] == WorkStatus.FAILED
    assert history.first("AgentStopped", "query failed").data("WorkflowFailed")["reason"] == "broken"


def test_row_report_generated__the_task_is_completed_and_the_next_query_is_sent(history: History) -> None:
    moment = history.first("ReportGenerated", "completed")
    done, following = moment.after.works[0].tasks
    assert (done.report.status, done.status) == (ReportStatus.COMPLETED, TaskStatus.COMPLETED)
    assert done.report.file_path == moment.data("ReportGenerated")["filePath"]
    assert moment.data("TaskCompleted")["taskId"] == done.id
    assert moment.command(commands.SendQuery).task_id == following.id


def test_row_report_failed__the_report_failed_and_the_work_changes_its_status(history: History) -> None:
    moment = history.first("ReportFailed", "report failed")
    report = moment.after.works[0].tasks[0].report
    assert (report.status, report.error) == (ReportStatus.FAILED, "broken")
    assert moment.data("WorkStatusChanged")["status"] == WorkStatus.FAILED
    assert history.first("AgentStopped", "report failed").data("WorkflowFailed")["reason"] == "broken"


def test_row_workflow_git_refs_updated__a_repository_added_in_ready_is_prepared_and_the_run_is_ready_again(
    history: History,
) -> None:
    moment = history.first("modify", "prepared")
    assert (moment.before.status, moment.after.status) == (WorkflowStatus.READY, WorkflowStatus.PREPARING)
    assert [ref["gitId"] for ref in moment.data("WorkflowGitRefsUpdated")["addedRefs"]] == [DOCS.git_id]
    assert [tree.git_id for tree in moment.command(commands.PrepareResources).trees] == [DOCS.git_id]
    created = history.all("WorkTreeCreated", "prepared")[-1]
    assert (created.before.status, created.after.status) == (WorkflowStatus.PREPARING, WorkflowStatus.READY)


def test_row_workflow_mcp_server_refs_updated__only_informs_and_the_next_work_has_the_merged_list(
    history: History,
) -> None:
    assert only_informs(events.WorkflowMcpServerRefsUpdated)
    moment = history.first("modify", "completed")
    assert list(moment.data("WorkflowMcpServerRefsUpdated")["addedRefs"]) == ["mcp-more"]
    before = history.all("WorkTreeCreated", "completed")[1].command(commands.StartAgent)
    after = history.first("CheckpointCreated", "completed").command(commands.StartAgent)
    assert (before.mcp_server_refs, after.mcp_server_refs) == ((TOOLS,), (TOOLS, MORE_TOOLS.without_env()))


def test_row_git_deleted__its_references_leave_every_template(history: History) -> None:
    template = history.cascaded["delete_git"]
    assert template.git_refs == (APP,)
    assert [work.git_refs for work in template.works] == [()]
    assert len(template.mcp_server_refs) == 2
    updated = [entry.data["templateId"] for entry in history.registry["delete_git"] if "Template" in entry.type]
    # This includes the template that the run was made from, and the one that was made from the run.
    assert len(updated) == 3
    assert {"tpl-old", "like-before"} < set(updated)


def test_row_mcp_server_unregistered__its_references_leave_every_template(history: History) -> None:
    template = history.cascaded["unregister_mcp_server"]
    assert template.mcp_server_refs == (TOOLS,)
    assert [work.mcp_server_refs for work in template.works] == [()]
    entries = history.registry["unregister_mcp_server"]
    assert "McpServerUnregistered" in [entry.type for entry in entries]
    updated = [entry.data["templateId"] for entry in entries if entry.type == "WorkflowTemplateUpdated"]
    assert {"tpl-old", "like-before"} < set(updated)


def test_the_stream_of_runs_subscribes_to_every_answer() -> None:
    for kind in ANSWERS:
        assert TOPOLOGY.route(Envelope(type=kind.__name__)) == ("workflow",)
    assert set(ANSWERS) == {
        kind for kind in vars(answers).values() if isinstance(kind, type) and issubclass(kind, answers.HostAnswer)
    } - {answers.HostAnswer, answers.AnswerWithCost, answers.FailedTurn}
