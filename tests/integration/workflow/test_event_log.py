"""Every event of the catalog is logged under its name, with its payload, and only by its publisher."""

import pytest

from kingdom.bus import Envelope, LogEntry
from kingdom.workflow.model.messages.answers import HostAnswer
from kingdom.workflow.model.messages.catalog import EVENT_TYPES
from kingdom.workflow.model.messages.events import DomainEvent
from kingdom.workflow.records import ENGINE
from tests.integration.workflow.history import History
from tests.integration.workflow.scene import ANNA

# The event, its payload, and its publisher: a use case, or the handler of a host's answer.
TABLE = """
GitCreated: gitId | create_git
GitDeleted: gitId | delete_git
WorkflowTemplateCreated: templateId | create_template template_from_workflow
WorkflowTemplateUpdated: templateId | update_template delete_git unregister_mcp_server
WorkflowTemplateDeleted: templateId | delete_template
WorkflowCreated: workflowId | create
WorkflowStarted: workflowId | start WorkTreeCreated
WorkflowPaused: workflowId | AgentStopped
WorkflowResumed: workflowId fromWorkId | RolledBack
WorkflowCompleted: workflowId | CheckpointCreated
WorkflowFailed: workflowId reason | AgentError AgentStopped WorkTreeFailed
WorkflowCancelled: workflowId | AgentStopped
WorkflowGitRefsUpdated: workflowId addedRefs removedRefs | modify
WorkflowMcpServerRefsUpdated: workflowId addedRefs removedRefs | modify
WorkStatusChanged: workId workflowId status | \
AgentStarted QueryResponded ReportGenerated WorkVerified AgentStopped AgentError QueryFailed ReportFailed RolledBack
WorkStarted: workId workflowId | AgentStarted
WorkCompleted: workId workflowId | WorkVerified
AgentStarted: workId | AgentStarted
AgentStopped: workId | AgentStopped
AgentError: workId error | AgentError
TaskStarted: workId taskId | AgentStarted QueryResponded ReportGenerated
TaskCompleted: workId taskId | QueryResponded ReportGenerated
QuerySent: workId taskId | AgentStarted QueryResponded ReportGenerated
QueryResponded: workId taskId response | QueryResponded
QueryFailed: workId taskId error | QueryFailed
ReportGenerationStarted: reportId taskId | QueryResponded
ReportGenerated: reportId taskId filePath | ReportGenerated
ReportFailed: reportId taskId error | ReportFailed
CheckpointCreated: checkpointId workflowId workId | CheckpointCreated
WorkTreeCreated: workTreeId workflowId | WorkTreeCreated
WorkTreeFailed: workTreeId workflowId error | WorkTreeFailed
WorkTreePendingRelease: workTreeId workflowId gitId | modify release
WorkTreeReleased: workTreeId workflowId | WorkTreeReleased
WorkSpaceCreated: workSpaceId workId | WorkSpaceCreated
"""
ROWS = {line.split(":")[0]: line.split(":")[1] for line in TABLE.split("\n") if line}
TYPES: dict[str, type[DomainEvent]] = {kind.__name__: kind for kind in EVENT_TYPES}


@pytest.fixture(params=ROWS)
def row(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def logged(history: History, row: str) -> list[tuple[str, LogEntry]]:
    """Every entry of the row's event, with its cause."""
    return [(cause, entry) for cause, entry in history.entries() if entry.type == row]


def test_the_event_of_a_row_is_published_only_by_its_publisher(row: str, logged: list[tuple[str, LogEntry]]) -> None:
    publishers = ROWS[row].split("|")[1].split()
    assert {cause for cause, _ in logged} == set(publishers)


def test_the_event_of_a_row_has_its_payload(row: str, logged: list[tuple[str, LogEntry]]) -> None:
    fields = ROWS[row].split("|")[0].split()
    assert logged
    for _, entry in logged:
        assert entry.data.keys() >= set(fields)
        # The next Work is missing only in a run without remaining Works, and there is no such run here.
        assert all(entry.data[field] or field in {"addedRefs", "removedRefs"} for field in fields), entry
        decoded = EVENT_TYPES[TYPES[row]].decode(Envelope(type=row, payload=entry.data))
        assert type(decoded) is TYPES[row]


def test_the_event_of_a_row_is_logged_under_the_aggregate_in_its_payload(
    row: str, logged: list[tuple[str, LogEntry]]
) -> None:
    for _, entry in logged:
        named = [entry.data[key] for key in ("workflowId", "templateId") if key in entry.data]
        named += [entry.data["gitId"]] if row in {"GitCreated", "GitDeleted"} else []
        assert set(named) <= {entry.aggregate_id}
        parts = [entry.data[key] for key in ("workId", "taskId", "reportId", "workTreeId") if key in entry.data]
        assert all(part.startswith(f"{entry.aggregate_id}-") for part in parts)


def test_the_event_of_a_row_is_logged_with_the_actor_who_caused_it(
    row: str, logged: list[tuple[str, LogEntry]]
) -> None:
    for cause, entry in logged:
        if issubclass(TYPES[row], HostAnswer):
            assert entry.actor == "host-a"
        elif cause in TYPES or (row == "WorkflowTemplateUpdated" and cause != "update_template"):
            assert entry.actor == ENGINE
        else:
            assert entry.actor == ANNA


def test_no_answer_in_this_run_was_ignored(history: History) -> None:
    assert [entry for _, entry in history.entries() if "ignored" in entry.data] == []
