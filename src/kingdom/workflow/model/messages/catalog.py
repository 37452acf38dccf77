"""The catalogue of domain events: for each who says it and what follows; `python -m` prints it as a page."""

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
    """One event: who says it, and what follows in the run; an empty text means that it only informs."""

    event: type[DomainEvent]
    said_by: str
    follows: str = ""


HOST = "host"
CATALOG: Mapping[str, tuple[CatalogEntry, ...]] = {
    "Git": (
        CatalogEntry(events.GitCreated, "create git"),
        CatalogEntry(events.GitDeleted, "delete git", "its references leave every template"),
    ),
    "MCP server": (
        CatalogEntry(events.McpServerRegistered, "register mcp server"),
        CatalogEntry(events.McpServerUnregistered, "unregister mcp server", "its references leave every template"),
    ),
    "Host": (
        CatalogEntry(
            events.HostRegistered, "a host that starts, or has lost its lease", "WorkflowDisplaced for its runs"
        ),
        CatalogEntry(
            events.HostLost, "whoever saw no sign of life for a whole lease", "WorkflowDisplaced for its runs"
        ),
        CatalogEntry(
            events.HostRunsLeft, "HostRegistered or HostLost of a host with many runs", "WorkflowDisplaced for the next"
        ),
    ),
    "Template": (
        CatalogEntry(events.WorkflowTemplateCreated, "create template, template from workflow"),
        CatalogEntry(events.WorkflowTemplateUpdated, "update template; a deleted Git or McpServer"),
        CatalogEntry(events.WorkflowTemplateDeleted, "delete template"),
    ),
    "Workflow": (
        CatalogEntry(events.WorkflowCreated, "create"),
        CatalogEntry(events.WorkflowStatusChanged, "every change of a Workflow's state"),
        CatalogEntry(events.WorkflowPlaced, "place", "what ran under the earlier placement is over"),
        CatalogEntry(
            events.WorkflowDisplaced, "HostRegistered or HostLost", "WorkflowPlaced, where a host can take it"
        ),
        CatalogEntry(events.WorkflowStarted, "start", "the next Work starts: StartAgent"),
        CatalogEntry(
            events.WorkflowStopRequested, "pause, a question, cancel, a failure", "StopAgent or InterruptAgent"
        ),
        CatalogEntry(events.WorkflowPaused, "pause, once nothing runs"),
        CatalogEntry(
            events.WorkflowAwaiting,
            "a question of an agent, a gate after a Work, a spent budget, an agent in circles, a usage limit",
            "somebody is asked; with `until` nobody is, and it is continued then",
        ),
        CatalogEntry(events.WorkflowCostCorrected, "an answer that came too late, and had a cost"),
        CatalogEntry(events.WorkflowResumed, "resume, once trees are ready and rolled back", "the next Work goes on"),
        CatalogEntry(
            events.WorkflowCompleted, "the last checkpoint", "usage is released; ReleaseWorkTree where pending"
        ),
        CatalogEntry(
            events.WorkflowFailed, "a failure, once nothing runs", "usage is released; ReleaseWorkTree where pending"
        ),
        CatalogEntry(
            events.WorkflowCancelled, "cancel, once nothing runs", "usage is released; ReleaseWorkTree where pending"
        ),
        CatalogEntry(events.WorkflowDeleted, "delete", "ReleaseWorkTree for all"),
        CatalogEntry(events.WorkflowWorksUpdated, "modify"),
        CatalogEntry(
            events.WorkflowGitRefsUpdated, "modify", "PrepareResources for what was added; READY goes by PREPARING"
        ),
        CatalogEntry(events.WorkflowMcpServerRefsUpdated, "modify", "the next StartAgent carries the merged list"),
    ),
    "Work": (
        CatalogEntry(events.WorkStatusChanged, "every change of a Work's derived status"),
        CatalogEntry(events.WorkStarted, "AgentStarted", "the next query: SendQuery"),
        CatalogEntry(events.WorkCompleted, "WorkVerified", "TakeCheckpoint"),
        CatalogEntry(events.WorkPaused, "pause or a question, once nothing runs"),
        CatalogEntry(events.WorkFailed, "a failure that the policy does not retry", "the Workflow fails"),
        CatalogEntry(events.WorkRetried, "a failure that the policy retries", "the same command with the next attempt"),
        CatalogEntry(events.WorkCancelled, "cancel, once nothing runs"),
        CatalogEntry(events.WorkReset, "RolledBack"),
    ),
    "Agent": (
        CatalogEntry(answers.AgentStarted, HOST, "WorkStatusChanged, WorkStarted"),
        CatalogEntry(answers.AgentStopped, HOST, "what was wanted becomes true; unasked it is a failure"),
        CatalogEntry(answers.AgentAsked, HOST, "WorkflowAwaiting, once nothing runs; the reply continues the query"),
        CatalogEntry(answers.AgentSpent, HOST, "the cost of the Work grows"),
        CatalogEntry(answers.AgentPetitioned, HOST, "the Work keeps it for those who decide on it"),
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
            "a failure, or another attempt; over budget, throttled or looping: WorkflowAwaiting, and it goes on later",
        ),
        CatalogEntry(
            answers.QueryReconciled,
            HOST,
            "ABSENT: sent again; ANSWERED: as QueryResponded; UNFINISHED: the session continues; "
            "NO_TRANSCRIPT: a failure",
        ),
    ),
    "Report": (
        CatalogEntry(events.ReportGenerationStarted, "QueryResponded"),
        CatalogEntry(answers.ReportGenerated, HOST, "TaskCompleted"),
        CatalogEntry(
            answers.ReportFailed, HOST, "a failure, or another attempt; over budget or throttled: WorkflowAwaiting"
        ),
    ),
    "Verification and checkpoint": (
        CatalogEntry(answers.WorkVerified, HOST, "WorkStatusChanged, WorkCompleted"),
        CatalogEntry(answers.VerifyFailed, HOST, "a failure, or another attempt"),
        CatalogEntry(answers.CheckpointCreated, HOST, "the next Work, a gate, or WorkflowCompleted"),
        CatalogEntry(answers.CheckpointFailed, HOST, "a failure, or another attempt; the Work stays COMPLETED"),
        CatalogEntry(answers.RolledBack, HOST, "later Works are reset, then WorkflowResumed"),
        CatalogEntry(answers.RollBackFailed, HOST, "WorkflowFailed"),
    ),
    "Resources": (
        CatalogEntry(answers.WorkTreeCreated, HOST, "with the last one READY, or the run goes on"),
        CatalogEntry(answers.WorkTreeFailed, HOST, "none of the request is there; WorkflowFailed"),
        CatalogEntry(events.WorkTreePendingRelease, "modify, release, delete", "ReleaseWorkTree, now or at the end"),
        CatalogEntry(answers.WorkTreeReleased, HOST, "the WorkTree is RELEASED"),
        CatalogEntry(
            answers.WorkTreeReleaseFailed, HOST, "ReleaseWorkTree again at the end of the run, and a day later"
        ),
        CatalogEntry(answers.WorkSpaceCreated, HOST, "the Work remembers its WorkSpace"),
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

<!-- Written by `python -m kingdom.workflow.model.messages.catalog`; a test keeps it equal. -->

Every domain event of a run, with its payload, who says it and what follows. All of them go to the log. The envelope's
aggregate is the Workflow (for the first four groups: the Git, McpServer, host or template), and its id is the key of
their order. What a *host* says carries `host`, `epoch` and `attempt`: an answer under another placement, or to an
attempt that is over, is logged and changes nothing.
"""


def page() -> str:
    """Return the page of the documentation."""
    return "\n".join([_INTRODUCTION, *_event_tables(), *_command_table(), *_machine_tables(), *_operation_table()])


def _event_tables() -> Iterator[str]:
    for group, entries in CATALOG.items():
        yield f"## {group}\n"
        yield "| Event | Payload | What happened | Said by | What follows |\n| --- | --- | --- | --- | --- |"
        for entry in entries:
            meaning = (entry.event.__doc__ or "").replace("\n", " ").strip()
            name, payload = entry.event.__name__, _payload(entry.event)
            yield f"| `{name}` | {payload} | {meaning} | {entry.said_by} | {entry.follows} |"
        yield ""


def _payload(event: type[DomainEvent]) -> str:
    """Return the fields as they are on the wire; those of the placement come last."""
    own = [field.encode_name for field in msgspec.structs.fields(event)]
    placing = [field.encode_name for field in msgspec.structs.fields(answers.PaidAnswer)]
    names = [name for name in own if name not in placing] if issubclass(event, answers.HostAnswer) else own
    names += [name for name in own if name not in names]
    return ", ".join(f"`{name}`" for name in names)


def _command_table() -> Iterator[str]:
    yield "## Commands\n\nWhat a host is told, and what it answers. Those on the control stream overtake the others.\n"
    yield "| Command | What to do | Answers | Stream |\n| --- | --- | --- | --- |"
    for command, contract in COMMANDS.items():
        names = ", ".join(f"`{answer.__name__}`" for answer in contract.answers)
        doing = (command.__doc__ or "").split("\n", maxsplit=1)[0]
        stream = "soldier.{host}.control" if contract.control else "soldier.{host}"
        yield f"| `{command.__name__}` | {doing} | {names} | `{stream}` |"
    yield ""


def _machine_tables() -> Iterator[str]:
    yield "## States\n\nFrom each state the ones that can follow. The status of a Work is derived from its parts.\n"
    yield "| Machine | State | Can become |\n| --- | --- | --- |"
    for machine in MACHINES:
        for state, following in machine.arrows.items():
            can = ", ".join(to for to in machine.arrows if to in following) or "nothing: final"
            yield f"| {machine.name} | {state} | {can} |"
    yield ""


def _operation_table() -> Iterator[str]:
    yield "## Operations\n\nWhat may be asked of a Workflow, and in which states.\n"
    yield "| Operation | Allowed in |\n| --- | --- |"
    for operation, states in OPERATIONS.items():
        yield f"| {operation} | {', '.join(state for state in MACHINES[0].arrows if state in states)} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(page())
