"""The answers of a host to a command: success or failure."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from kingdom.workflow.model.messages import answers, commands

A = TypeVar("A", bound=answers.HostAnswer)


def answer_to(command: commands.HostCommand, kind: type[A], /, **fields: Any) -> A:
    """Return an answer with the placement, the attempt and all other shared fields of its command."""
    known = {field.name for field in msgspec.structs.fields(kind)} & set(command.__struct_fields__)
    return kind(**{name: getattr(command, name) for name in known} | fields)


def reconciled(command: commands.SendQuery, finding: answers.TranscriptFinding) -> answers.QueryReconciled:
    response = "transcript#1" if finding is answers.TranscriptFinding.ANSWERED else ""
    return answer_to(command, answers.QueryReconciled, finding=finding, response=response)


def succeed(command: commands.HostCommand) -> list[answers.HostAnswer]:
    """Return the answers of a host that succeeds with a command."""
    return _SUCCESS[type(command)](command)


def fail(command: commands.HostCommand, error: str = "broken") -> answers.HostAnswer:
    """Return the answer of a host that fails with a command."""
    if isinstance(command, commands.SendQuery) and command.reconcile:
        return reconciled(command, answers.TranscriptFinding.NO_TRANSCRIPT)
    if isinstance(command, commands.PrepareResources):
        return answer_to(command, answers.WorkTreeFailed, work_tree_id=command.trees[-1].work_tree_id, error=error)
    return answer_to(command, _FAILURE[type(command)], error=error)


def ask(command: commands.SendQuery, question: str = "which one?", *choices: str) -> answers.AgentAsked:
    """Return the answer of a host whose agent asks a question."""
    return answer_to(command, answers.AgentAsked, question=question, choices=choices, cost_usd=0.25)


def spent(command: commands.SendQuery | commands.GenerateReport, cost_usd: float) -> answers.AgentSpent:
    """Return the answer of a host about a turn that was cut off."""
    return answer_to(command, answers.AgentSpent, cost_usd=cost_usd)


def throttled(command: commands.SendQuery | commands.GenerateReport, until: datetime) -> answers.HostAnswer:
    """Return the answer of a host whose vendor has a usage limit until a time."""
    return answer_to(command, _FAILURE[type(command)], error="usage limit", throttled_until=until, cost_usd=0.25)


def budget_spent(command: commands.SendQuery | commands.GenerateReport, cost_usd: float) -> answers.HostAnswer:
    """Return the answer of a host about a turn that reached its budget."""
    return answer_to(command, _FAILURE[type(command)], error="spent", over_budget=True, cost_usd=cost_usd)


def looping(command: commands.SendQuery) -> answers.QueryFailed:
    """Return the answer of a host whose agent loops."""
    return answer_to(
        command, answers.QueryFailed, error="the agent ran `ls` 8 times in a row", looping=True, cost_usd=0.25
    )


def petition(
    command: commands.SendQuery | commands.GenerateReport, petition_id: str = "petition-1"
) -> answers.AgentPetitioned:
    """Return the answer of a host whose agent makes a petition."""
    body = {"pull_request": 7, "text": "done"}
    return answer_to(command, answers.AgentPetitioned, petition_id=petition_id, kind="github.comment", body=body)


def agent_of(work_id: str, attempt: int = 1) -> commands.StopAgent:
    """Return a command that an answer can refer to if an agent ends without a command."""
    return commands.StopAgent(workflow_id="wf-1", host="host-a", epoch=1, attempt=attempt, work_id=work_id)


def _prepared(command: Any) -> list[answers.HostAnswer]:
    return [answer_to(command, answers.WorkTreeCreated, work_tree_id=tree.work_tree_id) for tree in command.trees]


def _started(command: Any) -> list[answers.HostAnswer]:
    session = command.session or f"session-{command.attempt}"
    return [answer_to(command, answers.WorkSpaceCreated), answer_to(command, answers.AgentStarted, session=session)]


def _queried(command: Any) -> list[answers.HostAnswer]:
    if command.reconcile:
        return [reconciled(command, answers.TranscriptFinding.ANSWERED)]
    return [answer_to(command, answers.QueryResponded, response="transcript#1", cost_usd=0.25)]


def _reported(command: Any) -> list[answers.HostAnswer]:
    return [answer_to(command, answers.ReportGenerated, file_path=f"reports/{command.report_id}-{command.attempt}.md")]


def _checkpointed(command: Any) -> list[answers.HostAnswer]:
    commits = dict.fromkeys(command.work_tree_ids, f"commit-{command.checkpoint_id}")
    changed: dict[str, list[str]] = {name: ["a.txt"] for name in command.work_tree_ids}
    return [answer_to(command, answers.CheckpointCreated, commits=commits, changed_paths=changed)]


_SUCCESS: Mapping[type[commands.HostCommand], Callable[[Any], list[answers.HostAnswer]]] = {
    commands.PrepareResources: _prepared,
    commands.StartAgent: _started,
    commands.SendQuery: _queried,
    commands.GenerateReport: _reported,
    commands.VerifyWork: lambda command: [answer_to(command, answers.WorkVerified)],
    commands.TakeCheckpoint: _checkpointed,
    commands.StopAgent: lambda command: [answer_to(command, answers.AgentStopped)],
    commands.InterruptAgent: lambda command: [answer_to(command, answers.AgentStopped)],
    commands.RollBack: lambda command: [answer_to(command, answers.RolledBack)],
    commands.ReleaseWorkTree: lambda command: [answer_to(command, answers.WorkTreeReleased)],
}
_FAILURE: Mapping[type[commands.HostCommand], type[answers.HostAnswer]] = {
    commands.StartAgent: answers.AgentError,
    commands.SendQuery: answers.QueryFailed,
    commands.GenerateReport: answers.ReportFailed,
    commands.VerifyWork: answers.VerifyFailed,
    commands.TakeCheckpoint: answers.CheckpointFailed,
    commands.StopAgent: answers.AgentError,
    commands.InterruptAgent: answers.AgentError,
    commands.RollBack: answers.RollBackFailed,
    commands.ReleaseWorkTree: answers.WorkTreeReleaseFailed,
}
