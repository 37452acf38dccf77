"""The catalog has every documented domain event with its payload, and every additional event."""

import inspect

import msgspec
import pytest

from kingdom.bus import Envelope
from kingdom.errors import MalformedEvent
from kingdom.workflow.model.messages import answers, commands, events
from kingdom.workflow.model.messages.catalog import COMMAND_TYPES, ENTRIES, EVENT_TYPES
from kingdom.workflow.model.messages.events import DomainEvent
from kingdom.workflow.model.references import GitRef
from kingdom.workflow.model.steps.operations import cancel, pause
from tests.unit.workflow.model.scene import Run, started

BASES = {"DomainEvent", "WorkflowEvent", "WorkEvent", "HostAnswer", "AnswerWithCost", "FailedTurn"}
PLACEMENT = {"host", "epoch", "attempt"}

# The documented events with the fields of their payloads.
DOCUMENTED = """
GitCreated gitId
GitDeleted gitId
WorkflowTemplateCreated templateId
WorkflowTemplateUpdated templateId
WorkflowTemplateDeleted templateId
WorkflowCreated workflowId
WorkflowStarted workflowId
WorkflowPaused workflowId
WorkflowResumed workflowId fromWorkId
WorkflowCompleted workflowId
WorkflowFailed workflowId reason
WorkflowCancelled workflowId
WorkflowGitRefsUpdated workflowId addedRefs removedRefs
WorkflowMcpServerRefsUpdated workflowId addedRefs removedRefs
WorkStatusChanged workId workflowId status
WorkStarted workId workflowId
WorkCompleted workId workflowId
AgentStarted workId
AgentStopped workId
AgentError workId error
TaskStarted workId taskId
TaskCompleted workId taskId
QuerySent workId taskId
QueryResponded workId taskId response
QueryFailed workId taskId error
ReportGenerationStarted reportId taskId
ReportGenerated reportId taskId filePath
ReportFailed reportId taskId error
CheckpointCreated checkpointId workflowId workId
WorkTreeCreated workTreeId workflowId
WorkTreeFailed workTreeId workflowId error
WorkTreePendingRelease workTreeId workflowId gitId
WorkTreeReleased workTreeId workflowId
WorkSpaceCreated workSpaceId workId
"""
ROWS = [tuple(line.split()) for line in DOCUMENTED.split("\n") if line]
# Fields in addition to the documented ones: they continue a session and find its process, return to a commit and
# check its paths, tell whether time or budget ran out or the agent can continue later, and record the cost.
EXTRA = {
    "AgentStarted": {"session", "pid"},
    "CheckpointCreated": {"commits", "changedPaths"},
    "QueryFailed": {"timedOut", "overBudget", "throttledUntil", "looping"},
    "QuerySent": {"attempt"},
    "ReportFailed": {"overBudget", "throttledUntil"},
}


def fields(event: type[DomainEvent]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(event)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_documented_event_has_its_documented_payload(row: tuple[str, ...]) -> None:
    name, *payload = row
    [event] = [entry.event for entry in ENTRIES if entry.event.__name__ == name]
    beyond = fields(event) - set(payload) - EXTRA.get(name, set())
    assert set(payload) <= fields(event)
    assert beyond <= (PLACEMENT | {"costUsd"} if issubclass(event, answers.HostAnswer) else set())


def test_every_event_of_the_code_is_in_the_catalog_once() -> None:
    defined = {
        name
        for module in (events, answers)
        for name, thing in inspect.getmembers(module, inspect.isclass)
        if issubclass(thing, DomainEvent) and name not in BASES
    }
    listed = [entry.event.__name__ for entry in ENTRIES]
    assert sorted(listed) == sorted(defined)


def test_exactly_the_answers_of_a_host_carry_a_placement() -> None:
    for entry in ENTRIES:
        assert (
            (entry.cause == "host") == issubclass(entry.event, answers.HostAnswer) == (fields(entry.event) > PLACEMENT)
        )


def test_an_event_is_decoded_from_its_camel_case_envelope_unchanged() -> None:
    refs = (GitRef(git_id="git-app", base_branch="main"),)
    event = events.WorkflowGitRefsUpdated(workflow_id="wf-1", added_refs=refs, removed_refs=())
    envelope = EVENT_TYPES[type(event)].envelope(event, aggregate_type="Workflow", aggregate_id="wf-1")
    assert envelope.payload == {
        "workflowId": "wf-1",
        "addedRefs": ({"gitId": "git-app", "baseBranch": "main"},),
        "removedRefs": (),
    }
    assert EVENT_TYPES[type(event)].decode(envelope) == event


def test_an_answer_without_a_placement_is_malformed() -> None:
    with pytest.raises(MalformedEvent, match="AgentStopped"):
        EVENT_TYPES[answers.AgentStopped].decode(Envelope(type="AgentStopped", payload={"workId": "w"}))


def test_every_event_and_command_of_a_run_is_decoded_from_its_envelope_unchanged() -> None:
    run: Run = started()
    run.until(commands.SendQuery, 1)
    run.do(pause)
    run.do(cancel)
    for event in run.published:
        assert EVENT_TYPES[type(event)].decode(EVENT_TYPES[type(event)].envelope(event)) == event
    for command in run.open:
        kind = COMMAND_TYPES[type(command)]
        assert kind.decode(kind.envelope(command)) == command
