"""The catalog of domain events with their causes and consequences; `python -m` prints docs/workflow-events.md."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from kingdom.bus.payload import EventType
from kingdom.workflow.model.messages import answers, events
from kingdom.workflow.model.messages.commands import COMMANDS, HostCommand
from kingdom.workflow.model.messages.events import DomainEvent
from kingdom.workflow.model.status import MACHINES, OPERATIONS


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One event: its cause, and what follows in the run. An empty `follows` means that the event causes nothing."""

    event: type[DomainEvent]
    cause: str
    follows: str = ""


HOST = "host"
CATALOG: Mapping[str, tuple[CatalogEntry, ...]] = {
    "Git": (
        CatalogEntry(events.GitCreated, "create git"),
        CatalogEntry(events.GitDeleted, "delete git", "its references are removed from every template"),
    ),
    "MCP server": (
        CatalogEntry(events.McpServerRegistered, "register mcp server"),
        CatalogEntry(
            events.McpServerUnregistered, "unregister mcp server", "its references are removed from every template"
        ),
    ),
    "Host": (
        CatalogEntry(
            events.HostRegistered,
            "a host that starts, or that registers again after it lost its lease",
            "WorkflowDisplaced for its runs",
        ),
        CatalogEntry(
            events.HostLost,
            "an engine that saw no renewal for a whole lease, retire host",
            "WorkflowDisplaced for its runs",
        ),
        CatalogEntry(
            events.HostRunsLeft,
            "HostRegistered or HostLost of a host with many runs",
            "WorkflowDisplaced for the next runs",
        ),
    ),
    "Template": (
        CatalogEntry(events.WorkflowTemplateCreated, "create template, template from workflow"),
        CatalogEntry(events.WorkflowTemplateUpdated, "update template; a deleted Git or McpServer"),
        CatalogEntry(events.WorkflowTemplateDeleted, "delete template"),
    ),
    "Workflow": (
        CatalogEntry(events.WorkflowCreated, "create"),
        CatalogEntry(events.WorkflowStatusChanged, "every change of a Workflow's status"),
        CatalogEntry(events.WorkflowPlaced, "place", "what ran under the earlier placement counts as ended"),
        CatalogEntry(
            events.WorkflowDisplaced, "HostRegistered or HostLost", "WorkflowPlaced, if a host can take the run"
        ),
        CatalogEntry(events.WorkflowStarted, "start", "the next Work starts: StartAgent"),
        CatalogEntry(
            events.WorkflowStopRequested,
            "pause, a question, a usage limit, cancel, a failure",
            "StopAgent or InterruptAgent",
        ),
        CatalogEntry(events.WorkflowPaused, "pause, when nothing runs"),
        CatalogEntry(
            events.WorkflowAwaiting,
            "a question of an agent, an approval after a Work, a used budget, an agent in a loop, a usage limit",
            "a person is asked; with `until` no person is asked, and the run continues at that time",
        ),
        CatalogEntry(events.WorkflowCostCorrected, "a late answer with a cost"),
        CatalogEntry(
            events.WorkflowResumed, "resume, when the WorkTrees are ready and rolled back", "the next Work continues"
        ),
        CatalogEntry(
            events.WorkflowCompleted,
            "the last checkpoint",
            "resources are free again; ReleaseWorkTree for unwanted WorkTrees",
        ),
        CatalogEntry(
            events.WorkflowFailed,
            "a failure, when nothing runs",
            "resources are free again; ReleaseWorkTree for unwanted WorkTrees",
        ),
        CatalogEntry(
            events.WorkflowCancelled,
            "cancel, when nothing runs",
            "resources are free again; ReleaseWorkTree for unwanted WorkTrees",
        ),
        CatalogEntry(events.WorkflowDeleted, "delete", "ReleaseWorkTree for every WorkTree"),
        CatalogEntry(events.WorkflowWorksUpdated, "modify"),
        CatalogEntry(
            events.WorkflowGitRefsUpdated,
            "modify",
            "PrepareResources for added repositories; a READY run prepares again",
        ),
        CatalogEntry(events.WorkflowMcpServerRefsUpdated, "modify", "the next StartAgent has the merged list"),
    ),
    "Work": (
        CatalogEntry(events.WorkStatusChanged, "every change of a Work's derived status, and every TaskCompleted"),
        CatalogEntry(events.WorkStarted, "AgentStarted", "the next query: SendQuery"),
        CatalogEntry(events.WorkCompleted, "WorkVerified", "TakeCheckpoint"),
        CatalogEntry(events.WorkPaused, "pause, a question or a usage limit, when nothing runs"),
        CatalogEntry(events.WorkFailed, "a failure that the policy does not retry", "the Workflow fails"),
        CatalogEntry(events.WorkRetried, "a failure that the policy retries", "the same command with the next attempt"),
        CatalogEntry(events.WorkCancelled, "cancel, when nothing runs"),
        CatalogEntry(events.WorkReset, "RolledBack"),
    ),
    "Agent": (
        CatalogEntry(answers.AgentStarted, HOST, "WorkStatusChanged, WorkStarted"),
        CatalogEntry(
            answers.AgentStopped, HOST, "the requested stop is complete; if no stop was requested, this is a failure"
        ),
        CatalogEntry(answers.AgentAsked, HOST, "WorkflowAwaiting, when nothing runs; the reply continues the query"),
        CatalogEntry(answers.AgentSpent, HOST, "the cost of the Work grows"),
        CatalogEntry(answers.AgentPetitioned, HOST, "the Work stores the petition for a decision"),
        CatalogEntry(
            answers.AgentError, HOST, "a failure: WorkStatusChanged, WorkFailed, WorkflowFailed, or another attempt"
        ),
    ),
    "Task and query": (
        CatalogEntry(events.TaskStarted, "SendQuery"),
        CatalogEntry(events.TaskCompleted, "QueryResponded or ReportGenerated", "the next SendQuery, or VerifyWork"),
        CatalogEntry(events.TaskFailed, "QueryFailed or ReportFailed", "WorkFailed"),
        CatalogEntry(events.QuerySent, "SendQuery"),
        CatalogEntry(answers.QueryResponded, HOST, "with an outline: GenerateReport; without: TaskCompleted"),
        CatalogEntry(
            answers.QueryFailed,
            HOST,
            "a failure or a retry; over budget, throttled or looping: WorkflowAwaiting, and the query continues later",
        ),
        CatalogEntry(
            answers.QueryReconciled,
            HOST,
            "ABSENT: the query is sent again; ANSWERED: like QueryResponded; UNFINISHED: the session continues; "
            "NO_TRANSCRIPT: a failure",
        ),
    ),
    "Report": (
        CatalogEntry(events.ReportGenerationStarted, "QueryResponded"),
        CatalogEntry(answers.ReportGenerated, HOST, "TaskCompleted"),
        CatalogEntry(answers.ReportFailed, HOST, "a failure or a retry; over budget or throttled: WorkflowAwaiting"),
    ),
    "Verification and checkpoint": (
        CatalogEntry(answers.WorkVerified, HOST, "WorkStatusChanged, WorkCompleted"),
        CatalogEntry(answers.VerifyFailed, HOST, "a failure or a retry"),
        CatalogEntry(answers.CheckpointCreated, HOST, "the next Work, the approval by a person, or WorkflowCompleted"),
        CatalogEntry(answers.CheckpointFailed, HOST, "a failure or a retry; the Work stays COMPLETED"),
        CatalogEntry(answers.RolledBack, HOST, "later Works are reset, then WorkflowResumed"),
        CatalogEntry(answers.RollBackFailed, HOST, "WorkflowFailed"),
    ),
    "Resources": (
        CatalogEntry(answers.WorkTreeCreated, HOST, "after the last WorkTree the run is READY or continues"),
        CatalogEntry(answers.WorkTreeFailed, HOST, "WorkflowFailed"),
        CatalogEntry(events.WorkTreePendingRelease, "modify, release, delete", "ReleaseWorkTree, now or at the end"),
        CatalogEntry(answers.WorkTreeReleased, HOST, "the WorkTree is RELEASED"),
        CatalogEntry(
            answers.WorkTreeReleaseFailed, HOST, "ReleaseWorkTree again at the end of the run, and a day later"
        ),
        CatalogEntry(answers.WorkSpaceCreated, HOST, "the Work stores its WorkSpace"),
        CatalogEntry(events.WorkSpaceRemoved, "RolledBack"),
    ),
}
ENTRIES = tuple(entry for entries in CATALOG.values() for entry in entries)
EVENT_TYPES: Mapping[type[DomainEvent], EventType[DomainEvent]] = {
    entry.event: EventType(name=entry.event.__name__, payload=entry.event) for entry in ENTRIES
}
COMMAND_TYPES: Mapping[type[HostCommand], EventType[HostCommand]] = {
    command: EventType(name=command.__name__, payload=command) for command in COMMANDS
}

_INTRODUCTION = """\
# Workflow events

<!-- Written by `python -m kingdom.workflow.model.messages.catalog`. A test compares this page with its output. -->

Every domain event of a run, with its payload, its cause and what follows. All events are written to the log. The
aggregate of the envelope is the Workflow; for the first four groups it is the Git, McpServer, host or template. Events
of one aggregate stay in order. Events with the cause *host* are answers of a host and contain `host`, `epoch` and
`attempt`. An answer for another placement or an earlier attempt is logged, and only its cost counts.
"""


def page() -> str:
    """Return the documentation page."""
    return "\n".join([_INTRODUCTION, *_event_tables(), *_command_table(), *_machine_tables(), *_operation_table()])


def _event_tables() -> Iterator[str]:
    for group, entries in CATALOG.items():
        yield f"## {group}\n"
        yield "| Event | Payload | What happened | Cause | What follows |\n| --- | --- | --- | --- | --- |"
        for entry in entries:
            meaning = (entry.event.__doc__ or "").replace("\n", " ").strip()
            name, payload = entry.event.__name__, _payload(entry.event)
            yield f"| `{name}` | {payload} | {meaning} | {entry.cause} | {entry.follows} |"
        yield ""


def _payload(event: type[DomainEvent]) -> str:
    """Return the field names on the wire, with the common fields of all answers at the end."""
    own = [field.encode_name for field in msgspec.structs.fields(event)]
    common = [field.encode_name for field in msgspec.structs.fields(answers.AnswerWithCost)]
    names = [name for name in own if name not in common] if issubclass(event, answers.HostAnswer) else own
    names += [name for name in own if name not in names]
    return ", ".join(f"`{name}`" for name in names)


def _command_table() -> Iterator[str]:
    yield "## Commands\n\nCommands to a host, and their answers. Commands on the control stream overtake the others.\n"
    yield "| Command | What to do | Answers | Stream |\n| --- | --- | --- | --- |"
    for command, contract in COMMANDS.items():
        names = ", ".join(f"`{answer.__name__}`" for answer in contract.answers)
        meaning = (command.__doc__ or "").split("\n", maxsplit=1)[0]
        stream = "soldier.{host}.control" if contract.control else "soldier.{host}"
        yield f"| `{command.__name__}` | {meaning} | {names} | `{stream}` |"
    yield ""


def _machine_tables() -> Iterator[str]:
    yield "## States\n\nEach state and the states that can follow. The status of a Work is derived from its parts.\n"
    yield "| Machine | State | Can become |\n| --- | --- | --- |"
    for machine in MACHINES:
        for state, following in machine.transitions.items():
            names = ", ".join(to for to in machine.transitions if to in following) or "nothing: final"
            yield f"| {machine.name} | {state} | {names} |"
    yield ""


def _operation_table() -> Iterator[str]:
    yield "## Operations\n\nThe operations of a Workflow, and the states that allow them.\n"
    yield "| Operation | Allowed in |\n| --- | --- |"
    for operation, states in OPERATIONS.items():
        yield f"| {operation} | {', '.join(state for state in MACHINES[0].transitions if state in states)} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(page())
