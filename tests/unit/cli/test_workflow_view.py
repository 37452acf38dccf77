from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console, RenderableType

from kingdom.actions.definitions import read_definition, write_definition
from kingdom.actions.runs import next_commands
from kingdom.bus.log import LogEntry
from kingdom.cli.framework.workflow_ids import choose_id, find_checkpoint, find_task, find_work
from kingdom.cli.workflow.view import checkpoints_view, describe_state, list_view, log_line, tree_view
from kingdom.errors import Ambiguous, Misconfigured, NotFound
from kingdom.workflow.model.references import GitRef
from kingdom.workflow.model.report_outline import ReportSection
from kingdom.workflow.model.resources.host import Host, HostStatus
from kingdom.workflow.model.resources.template import TaskDefinition, WorkDefinition, WorkflowTemplate
from kingdom.workflow.model.run.checkpoint import Checkpoint, digest
from kingdom.workflow.model.run.workflow import Placement, RunQuestion, StopOutcome, StopRequest, Workflow
from kingdom.workflow.model.status import (
    AgentStatus,
    CheckpointStatus,
    QueryStatus,
    VerificationStatus,
    WorkflowStatus,
    WorkStatus,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TASK = TaskDefinition(query="Write\na poem", report_outline=(ReportSection(title="Poem"),))


def new_run() -> Workflow:
    template = WorkflowTemplate(
        id="poem",
        name="Poem",
        git_refs=(GitRef(git_id="app", base_branch="main"),),
        works=(
            WorkDefinition(name="write", tasks=(TASK,), verify=("true",)),
            WorkDefinition(name="polish", tasks=(TaskDefinition(query="Polish it"),), pause_after=True),
        ),
    )
    return Workflow.copied_from(template, "wf-1", NOW)


def half_done() -> Workflow:
    """Return a run whose first Work is finished and whose second one runs for a minute."""
    run = new_run()
    run.status, run.placement, run.started_at = WorkflowStatus.RUNNING, Placement(host="box", epoch=1), NOW
    first, second = run.works
    first.status, first.cost_usd = WorkStatus.COMPLETED, 0.5
    first.verification.status = VerificationStatus.PASSED
    first.checkpointing.status, first.checkpointing.checkpoint_id = CheckpointStatus.TAKEN, "wf-1-w1-c1"
    first.tasks[0].query.status = QueryStatus.RESPONDED
    commits = {"wf-1-tree1": "0123456789abcdef"}
    run.checkpoints.append(
        Checkpoint(
            id="wf-1-w1-c1", work_id="wf-1-w1", commits=commits, definitions=digest(run.works[:1]), created_at=NOW
        )
    )
    second.status, second.agent.status, second.agent.attempt = WorkStatus.RUNNING, AgentStatus.RUNNING, 2
    second.started_at = NOW
    return run


def drawn(view: RenderableType) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


def test_a_run_is_shown_with_its_works_tasks_checkouts_and_checkpoints() -> None:
    host = Host(id="box", epoch=1, slots=1, status=HostStatus.LOST)
    lines = drawn(tree_view(half_done(), host, NOW + timedelta(minutes=1))).splitlines()
    assert lines[0] == "wf-1 Poem RUNNING on box (LOST), $0.50, 1.0 min"
    assert [line.lstrip("│├└─ ") for line in lines[1:]] == [
        "1. write (w1) COMPLETED $0.50",
        "w1-t1 RUNNING query RESPONDED, report PENDING: Write a poem",
        "2. polish (w2) RUNNING attempt 2, agent RUNNING, 1.0 min, asks a person afterwards",
        "w2-t1 PENDING query PENDING: Polish it",
        "checkouts",
        "tree1 PENDING app, branch kingdom/wf-1/poem from main",
        "checkpoints",
        "w1-c1 after write (w1), valid",
        "next: pause, cancel, modify",
    ]


def test_a_failure_is_reported_once() -> None:
    run = half_done()
    run.status, run.reason = WorkflowStatus.FAILED, "work polish failed: no rhyme"
    run.works[1].verification.error = "no rhyme"
    run.works[1].agent.error = "out of ink"
    screen = drawn(tree_view(run, None, NOW))
    assert screen.count("no rhyme") == 1
    assert "agent: out of ink" in screen


def test_a_question_is_shown_with_its_choices_and_not_again_as_a_reason() -> None:
    run = half_done()
    run.status, run.reason = WorkflowStatus.AWAITING, "Which?"
    run.question = RunQuestion(task_id="wf-1-w2-t1", text="Which?", choices=("this", "that"))
    assert drawn(tree_view(run, None, NOW)).count("Which?") == 1
    assert "next: resume, cancel" in drawn(tree_view(run, None, NOW))
    run.general = "gen-poet"
    assert "next: answer, resume, cancel" in drawn(tree_view(run, None, NOW))
    assert describe_state(run) == "wf-1 is AWAITING, it asks: Which? (this / that)"
    assert "asks: Which?" in drawn(list_view([run]))


def test_messages_of_agents_do_not_control_the_terminal() -> None:
    run = half_done()
    run.reason = "\x1b[2J gone"
    assert "\x1b[2J" not in drawn(tree_view(run, None, NOW))
    assert "\\x1b[2J gone" in drawn(list_view([run]))


def test_a_list_of_runs_shows_the_progress_and_the_cost_of_each() -> None:
    row = drawn(list_view([half_done()])).splitlines()[3].split()
    assert [*row[:6]] == ["wf-1", "Poem", "RUNNING", "box", "1/2", "$0.50"]


def test_a_run_with_a_stop_request_says_what_it_is_about_to_do() -> None:
    run = half_done()
    run.stop_request = StopRequest(outcome=StopOutcome.PAUSE, reason="a person paused it")
    assert describe_state(run) == "wf-1 is RUNNING and about to pause (a person paused it)"


def test_a_deleted_run_allows_no_commands() -> None:
    run = new_run()
    assert next_commands(run) == ["prepare", "start", "cancel", "modify", "delete"]
    run.deleted_at = NOW
    assert next_commands(run) == []
    assert describe_state(run) == "wf-1 is deleted"


def test_checkpoints_show_their_commits_and_whether_they_are_still_valid() -> None:
    run = half_done()
    assert drawn(checkpoints_view(run)).split()[6:12] == ["w1-c1", "write", "(w1)", "app", "0123456789ab", "yes"]
    run.works[0].checkpointing.checkpoint_id = "wf-1-w1-c2"
    assert drawn(checkpoints_view(run)).split()[11] == "no"


def test_a_log_line_has_short_ids_and_leaves_out_internal_fields() -> None:
    data = {"workflowId": "wf-1", "host": "box", "epoch": 3, "workId": "wf-1-w1", "commits": {"wf-1-tree1": "abc"}}
    line = log_line(new_run(), LogEntry(type="CheckpointCreated", actor="box", data=data, at=NOW))
    assert line.split(" ", 2)[2] == 'CheckpointCreated by box: workId=w1 commits={"tree1":"abc"}'


def test_a_run_is_found_by_the_beginning_or_the_end_of_its_id() -> None:
    there = {"wf-1aa": "RUNNING", "wf-1bb": "FAILED", "wf-2ab": "CREATED"}
    meant = {text: choose_id(text, there) for text in ("wf-1a", "1b", "2", "bb", "ab")}
    assert meant == dict(zip(meant, ("wf-1aa", "wf-1bb", "wf-2ab", "wf-1bb", "wf-2ab"), strict=True))
    with pytest.raises(Ambiguous, match=r"'wf-1' matches wf-1bb \(FAILED\), wf-1aa \(RUNNING\): write more"):
        choose_id("wf-1", there)
    for text in ("", "3", "1"):
        with pytest.raises(NotFound):
            choose_id(text, there)


def test_works_tasks_and_checkpoints_are_found_by_short_ids() -> None:
    run = half_done()
    assert find_work(run, "w2") is find_work(run, "polish") is find_work(run, "wf-1-w2") is run.works[1]
    assert find_task(run, "w1-t1") is run.works[0].tasks[0]
    assert find_checkpoint(run, "w1-c1").id == "wf-1-w1-c1"
    with pytest.raises(NotFound, match="no unique work 'w3'; it has: w1, w2"):
        find_work(run, "w3")
    with pytest.raises(NotFound, match="it has: w1-c1"):
        find_checkpoint(run, "w2-c1")


def test_a_definition_is_read_back_as_it_was_written() -> None:
    run = half_done()
    change = read_definition(write_definition(run), "run.yaml")
    assert change.git_refs == run.git_refs
    assert change.mcp_server_refs == ()
    assert [(work.id, work.definition) for work in change.works or ()] == [(w.id, w.definition) for w in run.works]


def test_fields_missing_from_a_definition_stay_unchanged() -> None:
    change = read_definition("works: [{name: new, tasks: [Do it]}]", "run.yaml")
    assert (change.git_refs, change.mcp_server_refs) == (None, None)
    (work,) = change.works or ()
    assert (work.id, work.definition.tasks[0].query) == (None, "Do it")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "run.yaml:1: the file: must be a block of fields"),
        ("works", "run.yaml:1: the file: must be a block of fields"),
        ("{}", "a definition needs at least one of gitRefs, mcpServerRefs, works"),
        ("name: x", "run.yaml:1: name: unknown field; known fields: gitRefs, mcpServerRefs, works"),
        ("works:\n- nam: a", "run.yaml:2: works.0..nam: unknown field; known fields: .*id"),
        ("gitRefs:", "run.yaml:1: gitRefs: must be a list"),
        ("works:\n- name: a\n  tasks: 7", "run.yaml:3: works"),
    ],
)
def test_an_invalid_definition_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(Misconfigured, match=words):
        read_definition(text, "run.yaml")
