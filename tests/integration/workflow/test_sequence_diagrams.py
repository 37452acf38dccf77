"""The sequence diagrams of a run, arrow by arrow: start to end, resume, failure, pause and cancel."""

from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.status import (
    AgentStatus,
    QueryStatus,
    ReportStatus,
    TaskStatus,
    WorkflowStatus,
    WorkStatus,
    WorkTreeStatus,
)
from tests.integration.workflow.history import History, Moment
from tests.unit.workflow.model.scene import APP, LIB

DONE = "completed"


def test_arrow_3_1_client_to_start_workflow__usage_is_taken_and_resources_are_prepared(history: History) -> None:
    moment = history.first("start", DONE)
    run = moment.after.id
    assert (moment.before.status, moment.after.status) == (WorkflowStatus.CREATED, WorkflowStatus.PREPARING)
    assert [tree.git_id for tree in moment.command(commands.PrepareResources).trees] == [APP.git_id, LIB.git_id]
    assert run in moment.git_users
    assert run in moment.server_users


def test_arrow_3_1_start_workflow_to_start_next_work__workflow_started(history: History) -> None:
    [moment] = history.saying("WorkflowStarted", DONE)
    assert moment.after.status is WorkflowStatus.RUNNING
    assert moment.data("WorkflowStarted") == {"workflowId": moment.after.id}


def test_arrow_3_1_start_next_work_to_itself__the_first_pending_work_is_next(history: History) -> None:
    [moment] = history.saying("WorkflowStarted", DONE)
    assert [work.status for work in moment.before.works] == [WorkStatus.PENDING, WorkStatus.PENDING]
    assert moment.command(commands.StartAgent).work_id == moment.after.works[0].id


def test_arrow_3_1_start_next_work_to_agent_client__start(history: History) -> None:
    [moment] = history.saying("WorkflowStarted", DONE)
    command, work = moment.command(commands.StartAgent), moment.after.works[0]
    assert (command.model, command.host, command.session) == (work.definition.model, "host-a", None)
    assert command.work_tree_ids == tuple(tree.id for tree in moment.after.work_trees)
    assert work.agent.status is AgentStatus.STARTING


def test_arrow_3_1_start_next_work_to_send_query__work_started(history: History) -> None:
    moment = history.first("AgentStarted", DONE)
    assert moment.names[:3] == ["AgentStarted", "WorkStatusChanged", "WorkStarted"]
    assert moment.data("WorkStarted")["workId"] == moment.after.works[0].id


def test_arrow_3_1_send_query_to_agent_client__the_query_is_sent_with_its_outline(history: History) -> None:
    moment = history.first("AgentStarted", DONE)
    command, task = moment.command(commands.SendQuery), moment.after.works[0].tasks[0]
    assert (command.query, command.report_outline) == ("look", task.definition.report_outline)
    assert task.query.status is QueryStatus.SENT
    assert moment.data("QuerySent")["taskId"] == task.id


def test_arrow_3_1_agent_to_send_query__query_responded(history: History) -> None:
    moment = history.first("QueryResponded", DONE)
    query = moment.after.works[0].tasks[0].query
    assert (query.status, query.response) == (QueryStatus.RESPONDED, moment.data("QueryResponded")["response"])
    assert moment.data("ReportGenerationStarted")["taskId"] == moment.after.works[0].tasks[0].id


def test_arrow_3_1_agent_to_complete_task__report_generated(history: History) -> None:
    moment = history.first("ReportGenerated", DONE)
    assert moment.after.works[0].tasks[0].report.status is ReportStatus.COMPLETED
    assert moment.data("TaskCompleted")["taskId"] == moment.after.works[0].tasks[0].id


def test_arrow_3_1_send_query_to_complete_task__without_a_report(history: History) -> None:
    moment = history.all("QueryResponded", DONE)[1]
    assert moment.names == ["QueryResponded", "TaskCompleted", "WorkStatusChanged"]
    assert moment.data("WorkStatusChanged")["status"] == WorkStatus.RUNNING
    assert moment.after.works[0].tasks[1].status is TaskStatus.COMPLETED


def test_arrow_3_1_complete_task_to_itself__advance_to_the_next_task(history: History) -> None:
    moment = history.first("ReportGenerated", DONE)
    before, after = moment.before.works[0], moment.after.works[0]
    assert before.current_task == before.tasks[0]
    assert after.current_task == after.tasks[1]


def test_arrow_3_1_complete_task_to_send_query__the_next_task(history: History) -> None:
    moment = history.all("QueryResponded", DONE)[2]
    following = moment.after.works[1].tasks[1]
    assert moment.command(commands.SendQuery).task_id == following.id
    assert moment.data("QuerySent")["taskId"] == following.id


def test_arrow_3_1_complete_task_to_checkpoint_service__work_completed(history: History) -> None:
    # The checks of a Work run between its last Task and its completion.
    assert history.all("QueryResponded", DONE)[1].command(commands.VerifyWork).work_id.endswith("-w1")
    moment = history.first("WorkVerified", DONE)
    assert moment.names == ["WorkVerified", "WorkStatusChanged", "WorkCompleted"]
    assert moment.after.works[0].status is WorkStatus.COMPLETED


def test_arrow_3_1_checkpoint_service_to_itself__a_checkpoint_per_work(history: History) -> None:
    assert history.first("WorkVerified", DONE).command(commands.TakeCheckpoint).work_id.endswith("-w1")
    moment = history.first("CheckpointCreated", DONE)
    [checkpoint] = moment.after.checkpoints
    data = moment.data("CheckpointCreated")
    assert (checkpoint.id, checkpoint.commits) == (data["checkpointId"], data["commits"])
    assert moment.after.valid_checkpoints() == [checkpoint]


def test_arrow_3_1_checkpoint_service_to_start_next_work__the_next_work(history: History) -> None:
    moment = history.first("CheckpointCreated", DONE)
    assert moment.command(commands.StartAgent).work_id == moment.after.works[1].id
    started = history.all("AgentStarted", DONE)[1]
    assert started.data("WorkStarted")["workId"] == moment.after.works[1].id


def test_arrow_3_1_start_next_work_to_client__workflow_completed(history: History) -> None:
    [moment] = history.saying("WorkflowCompleted", DONE)
    assert moment.cause == "CheckpointCreated"
    assert moment.after.status is WorkflowStatus.COMPLETED
    assert {work.status for work in moment.after.works} == {WorkStatus.COMPLETED}
    assert len(moment.after.checkpoints) == 2


def resumes(history: History) -> tuple[list[Moment], list[Moment]]:
    """Return the three resumes (no checkpoint, the last one, a chosen one) and the rollback of each."""
    asked, rolled_back = history.all("resume", "resumed"), history.all("RolledBack", "resumed")
    assert len(asked) == len(rolled_back) == 3
    return asked, rolled_back


def test_arrow_3_2_client_to_resume_workflow(history: History) -> None:
    for moment in resumes(history)[0]:
        assert (moment.before.status, moment.after.status) == (WorkflowStatus.PAUSED, WorkflowStatus.RESUMING)


def test_arrow_3_2_resume_workflow_to_checkpoint_service__auto_finds_the_last_valid_one(history: History) -> None:
    moment = resumes(history)[0][1]
    [last] = moment.before.valid_checkpoints()
    assert moment.command(commands.RollBack).checkpoint_id == last.id


def test_arrow_3_2_resume_workflow_to_checkpoint_service__a_chosen_one_of_the_valid_ones(history: History) -> None:
    moment = resumes(history)[0][2]
    chosen, last = moment.before.valid_checkpoints()
    assert moment.command(commands.RollBack).checkpoint_id == chosen.id != last.id


def test_arrow_3_2_resume_workflow_to_checkpoint_service__rollback_to_its_commits(history: History) -> None:
    asked, rolled_back = resumes(history)
    command = asked[1].command(commands.RollBack)
    assert command.commits == asked[1].before.valid_checkpoints()[-1].commits
    assert (sorted(command.commits), command.to_base) == ([tree.id for tree in asked[1].before.work_trees], ())
    assert rolled_back[1].data("WorkflowResumed")["fromWorkId"] == rolled_back[1].after.works[1].id


def test_arrow_3_2_resume_workflow_to_resource_service__rollback_to_base_without_a_checkpoint(
    history: History,
) -> None:
    asked, rolled_back = resumes(history)
    command = asked[0].command(commands.RollBack)
    assert (command.checkpoint_id, command.commits) == (None, {})
    assert command.to_base == tuple(tree.id for tree in asked[0].before.work_trees)
    assert rolled_back[0].data("WorkflowResumed")["fromWorkId"] == rolled_back[0].after.works[0].id


def test_arrow_3_2_resume_workflow_to_resource_service__later_workspaces_are_removed_and_later_reports_kept(
    history: History,
) -> None:
    asked, rolled_back = resumes(history)
    before, after = asked[1].before.works[1], rolled_back[1].after.works[1]
    report = before.tasks[0].report
    assert asked[1].command(commands.RollBack).work_space_ids == (before.work_space_id,)
    assert rolled_back[1].data("WorkSpaceRemoved")["workSpaceId"] == before.work_space_id
    assert (after.tasks[0].report.status, after.tasks[0].report.file_path) == (ReportStatus.PENDING, "")
    assert after.tasks[0].report.versions == [report.file_path]


def test_arrow_3_2_resume_workflow_to_itself__the_works_after_the_checkpoint_are_reset(history: History) -> None:
    moment = resumes(history)[1][2]
    reset = [entry.data["workId"] for entry in moment.logged if entry.type == "WorkReset"]
    assert reset == [work.id for work in moment.after.works[1:]]
    statuses = [work.status for work in moment.after.works]
    assert statuses == [WorkStatus.COMPLETED, WorkStatus.PENDING, WorkStatus.PENDING]
    assert {task.status for work in moment.after.works[1:] for task in work.tasks} == {TaskStatus.PENDING}


def test_arrow_3_2_resume_workflow_to_itself__the_workflow_runs_again_and_is_stored(history: History) -> None:
    for moment in resumes(history)[1]:
        assert (moment.before.status, moment.after.status) == (WorkflowStatus.RESUMING, WorkflowStatus.RUNNING)
        assert moment.after.resumption is None


def test_arrow_3_2_resume_workflow_to_start_next_work__workflow_resumed(history: History) -> None:
    for moment in resumes(history)[1]:
        assert moment.data("WorkflowResumed")["fromWorkId"] == moment.command(commands.StartAgent).work_id
    assert history.stories["resumed"][-1].after.status is WorkflowStatus.COMPLETED


def test_arrow_3_3_agent_to_agent_error_handler(history: History) -> None:
    moment = history.first("AgentError", "failed")
    assert moment.data("AgentError")["error"] == "the agent crashed"
    assert moment.logged[0].actor == "host-a"


def test_arrow_3_3_agent_error_handler_to_itself__the_agent_is_in_error(history: History) -> None:
    agent = history.first("AgentError", "failed").after.works[0].agent
    assert (agent.status, agent.error) == (AgentStatus.ERROR, "the agent crashed")


def test_arrow_3_3_agent_error_handler_to_workflow__work_status_changed_to_failed(history: History) -> None:
    moment = history.first("AgentError", "failed")
    assert moment.data("WorkStatusChanged")["status"] == WorkStatus.FAILED
    assert moment.after.works[0].status is WorkStatus.FAILED


def test_arrow_3_3_agent_error_handler_to_workflow__workflow_failed_and_can_be_resumed_or_cancelled(
    history: History,
) -> None:
    moment = history.first("AgentError", "failed")
    assert moment.data("WorkflowFailed")["reason"] == moment.after.reason == "the agent crashed"
    assert moment.after.status is WorkflowStatus.FAILED
    for operation in ("resume", "cancel"):
        moment.after.require_allowed(operation)


def test_arrow_3_4_client_to_pause_workflow(history: History) -> None:
    moment = history.first("pause", "resumed")
    assert moment.data("WorkflowStopRequested")["wanted"] == "PAUSE"
    # It is paused when its host confirms that nothing runs.
    assert moment.after.status is WorkflowStatus.RUNNING


def test_arrow_3_4_pause_workflow_to_agent_client__stop(history: History) -> None:
    moment = history.first("pause", "resumed")
    command = moment.command(commands.StopAgent)
    assert (command.work_id, command.stream) == (moment.after.works[0].id, "soldier.host-a.control")


def test_arrow_3_4_pause_workflow_to_itself__the_work_is_paused(history: History) -> None:
    moment = history.first("AgentStopped", "resumed")
    assert moment.after.works[0].status is WorkStatus.PAUSED
    assert moment.data("WorkPaused")["workId"] == moment.after.works[0].id


def test_arrow_3_4_pause_workflow_to_itself__the_workflow_is_paused_and_can_be_resumed_cancelled_or_modified(
    history: History,
) -> None:
    moment = history.first("AgentStopped", "resumed")
    assert moment.after.status is WorkflowStatus.PAUSED
    assert moment.names[-1] == "WorkflowPaused"
    for operation in ("resume", "cancel", "modify"):
        moment.after.require_allowed(operation)


def test_arrow_3_4_client_to_cancel_workflow(history: History) -> None:
    moment = history.first("cancel", "cancelled")
    assert moment.data("WorkflowStopRequested")["wanted"] == "CANCEL"


def test_arrow_3_4_cancel_workflow_to_agent_client__stop_each(history: History) -> None:
    moment = history.first("cancel", "cancelled")
    command = moment.command(commands.InterruptAgent)
    assert (command.work_id, command.stream) == (moment.after.works[0].id, "soldier.host-a.control")


def test_arrow_3_4_cancel_workflow_to_itself__works_and_unfinished_tasks_are_cancelled(history: History) -> None:
    moment = history.first("AgentStopped", "cancelled")
    assert {work.status for work in moment.after.works} == {WorkStatus.CANCELLED}
    assert {task.status for work in moment.after.works for task in work.tasks} == {TaskStatus.CANCELLED}


def test_arrow_3_4_cancel_workflow_to_itself__the_workflow_is_cancelled(history: History) -> None:
    moment = history.first("AgentStopped", "cancelled")
    assert (moment.before.status, moment.after.status) == (WorkflowStatus.RUNNING, WorkflowStatus.CANCELLED)
    assert moment.after.ended_at


def test_arrow_3_4_cancel_workflow_to_terminated_handler__workflow_cancelled(history: History) -> None:
    assert history.first("AgentStopped", "cancelled").names[-1] == "WorkflowCancelled"


def test_arrow_3_4_terminated_handler_to_itself__pending_checkouts_are_removed(history: History) -> None:
    moment = history.first("AgentStopped", "cancelled")
    released = history.first("WorkTreeReleased", "cancelled")
    assert released.data("WorkTreeReleased")["workTreeId"] == moment.command(commands.ReleaseWorkTree).work_tree_id
    statuses = {tree.ref.git_id: tree.status for tree in released.after.work_trees}
    assert statuses == {APP.git_id: WorkTreeStatus.READY, LIB.git_id: WorkTreeStatus.RELEASED}


def test_arrow_3_4_terminated_handler_to_itself__usage_of_git_and_mcp_server_is_released(history: History) -> None:
    moment = history.first("AgentStopped", "cancelled")
    before = history.first("cancel", "cancelled")
    for users, users_before in ((moment.git_users, before.git_users), (moment.server_users, before.server_users)):
        assert moment.after.id in users_before
        assert moment.after.id not in users
