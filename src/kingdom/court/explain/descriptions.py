"""ONE table: how each entry of the log is told. Pure; what is not in it is not told.

Statuses that follow from what is told, and what a General repeats of its run, would only make the page longer.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from kingdom.bus.log import LogEntry
from kingdom.court.documents import Assignment
from kingdom.court.explain.spans import short_id, who_answered
from kingdom.court.explain.timeline import MomentKind

_COMMIT_DIGITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptionContext:
    """What a reader has to know besides an entry: names of things, and who is meant."""

    rules: Mapping[str, str] = field(default_factory=dict)
    subject: str = ""
    works: Mapping[str, str] = field(default_factory=dict)
    gits: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[str, Assignment] = field(default_factory=dict)
    # The petitions for which a person was asked.
    approvals: Collection[str] = ()
    from_court: bool = True

    def work(self, data: Mapping[str, Any]) -> str:
        """Return the name of the Work that an entry is about."""
        work_id = str(data.get("workId") or "")
        return self.works.get(work_id) or (short_id(work_id) if work_id else "the run")


@dataclass(frozen=True, slots=True)
class Description:
    """What is told of an entry."""

    kind: MomentKind
    what: str
    why: str = ""


Describer = Callable[[Mapping[str, Any], DescriptionContext], Description | None]


def describe(entry: LogEntry, names: DescriptionContext) -> Description | None:
    """Return what is told of an entry, if anything is."""
    if ignored := entry.data.get("ignored"):
        return Description(MomentKind.LATE, f"said {entry.type} too late: it changed nothing", str(ignored))
    teller = DESCRIBERS.get(entry.type)
    return teller(entry.data, names) if teller else None


def _noticed(data: Mapping[str, Any], names: DescriptionContext) -> Description:
    return Description(MomentKind.EVENT, f"noticed {data['event_type']} from {data['source']}", names.subject)


def _dispatched(data: Mapping[str, Any], names: DescriptionContext) -> Description:
    assignment_id = str(data["task_id"])
    given = names.assignments.get(assignment_id)
    rule = names.rules.get(assignment_id, "")
    reasons = [f"its rule {rule} fits" if rule else "", f"priority {given.priority}" if given else ""]
    return Description(
        MomentKind.DECISION, f"gave it to {data['target_general']} as {assignment_id}", _joined(*reasons)
    )


def _resumed(data: Mapping[str, Any], names: DescriptionContext) -> Description:
    text, person = who_answered(names.assignments.get(str(data["task_id"])))
    what = f"lets {data['original_task_id']} go on as {data['task_id']}"
    said = f"{person or 'somebody'} answered: {text}" if text else "a person answered"
    return Description(MomentKind.ANSWER, what, said)


def _ended(data: Mapping[str, Any], _: DescriptionContext) -> Description:
    return Description(MomentKind.RESULT, f"reported the result of {data['task_id']}: {data['status']}")


def _failed(data: Mapping[str, Any], _: DescriptionContext) -> Description:
    tries = f" after {data['retry_count']} more tries" if data["retry_count"] else ""
    return Description(MomentKind.RESULT, f"gave {data['task_id']} up{tries}", str(data["error"]))


def _petition(what: str) -> Describer:
    def tell(data: Mapping[str, Any], _: DescriptionContext) -> Description:
        return Description(MomentKind.PETITION, f"{what} {_output(data)}", str(data.get("reason", "")))

    return tell


def _requested(data: Mapping[str, Any], names: DescriptionContext) -> Description:
    if data["petition_id"] in names.approvals:
        why = "a person is asked to approve it first"
    elif data["kind"] == "github.pull_request":
        why = "it is made of the checkpoint after this work"
    else:
        why = "it is done in its turn"
    return Description(MomentKind.PETITION, f"lets {_output(data)} wait", why)


def _output(data: Mapping[str, Any]) -> str:
    return f"{data['kind']} to {data['target']}" if data.get("target") else str(data["kind"])


def _placed(data: Mapping[str, Any], _: DescriptionContext) -> Description:
    again = data["epoch"] > 1
    return Description(
        MomentKind.RECOVERY if again else MomentKind.RUN, f"placed the run {'anew ' if again else ''}on {data['host']}"
    )


def _stop_wanted(data: Mapping[str, Any], _: DescriptionContext) -> Description | None:
    if data["wanted"] not in ("PAUSE", "CANCEL"):
        return None
    return Description(MomentKind.DECISION, f"wants the run to {str(data['wanted']).lower()}", str(data["reason"]))


def _run_resumed(data: Mapping[str, Any], names: DescriptionContext) -> Description:
    where = names.works.get(str(data["fromWorkId"]), short_id(str(data["fromWorkId"]))) if data["fromWorkId"] else ""
    return Description(MomentKind.RUN, f"let the run go on{f' with {where}' if where else ''}")


def _awaits(data: Mapping[str, Any], names: DescriptionContext) -> Description | None:
    return None if names.from_court else Description(MomentKind.QUESTION, "waits for a person", str(data["reason"]))


def _petitioned(data: Mapping[str, Any], names: DescriptionContext) -> Description | None:
    return None if names.from_court else Description(MomentKind.PETITION, f"its agent asks for {data['kind']}")


def _about_work(kind: MomentKind, words: str, why: str = "") -> Describer:
    """Return a teller whose words have the name of a Work in place of {}; `why` names a field."""

    def tell(data: Mapping[str, Any], names: DescriptionContext) -> Description:
        return Description(kind, words.format(names.work(data)), str(data.get(why) or ""))

    return tell


def _plain(kind: MomentKind, words: str, why: str = "") -> Describer:
    def tell(data: Mapping[str, Any], _: DescriptionContext) -> Description:
        return Description(kind, words, str(data.get(why) or ""))

    return tell


def _query_failed(data: Mapping[str, Any], names: DescriptionContext) -> Description:
    how = "took too long" if data.get("timedOut") else "failed"
    return Description(
        MomentKind.FAILURE, f"the query {short_id(data['taskId'])} of {names.work(data)} {how}", str(data["error"])
    )


def _reconciled(data: Mapping[str, Any], names: DescriptionContext) -> Description:
    found = {
        "ABSENT": "it never reached the agent and is sent again",
        "ANSWERED": "it was answered, which counts",
        "UNFINISHED": "it was begun, and the same session goes on with it",
        "NO_TRANSCRIPT": "there is none, so nobody knows",
    }
    what = f"looked up in the transcript what became of {short_id(data['taskId'])} of {names.work(data)}"
    return Description(MomentKind.RECOVERY, what, found.get(str(data["finding"]), str(data["finding"])))


def _checkpoint(data: Mapping[str, Any], names: DescriptionContext) -> Description:
    commits = [
        f"{names.gits.get(tree, short_id(tree))} {commit[:_COMMIT_DIGITS]}" for tree, commit in data["commits"].items()
    ]
    what = f"took checkpoint {_tail(str(data['checkpointId']))} after {names.work(data)}"
    return Description(MomentKind.CHECKPOINT, what, ", ".join(commits))


def _rolled_back(data: Mapping[str, Any], _: DescriptionContext) -> Description:
    to = f"checkpoint {_tail(str(data['checkpointId']))}" if data["checkpointId"] else "the base"
    rescued = ", ".join(data.get("rescueRefs") or ())
    return Description(
        MomentKind.CHECKPOINT, f"rolled back to {to}", f"what lay there is kept: {rescued}" if rescued else ""
    )


def _restarted(data: Mapping[str, Any], _: DescriptionContext) -> Description:
    return Description(MomentKind.CRASH, f"started {data['target']} again", "it had given no sign of life")


def _missed(data: Mapping[str, Any], _: DescriptionContext) -> Description:
    return Description(MomentKind.CRASH, f"missed a sign of life of {data['target']}", f"last seen {data['last_seen']}")


def _orphaned(data: Mapping[str, Any], _: DescriptionContext) -> Description:
    return Description(MomentKind.CRASH, f"found the session {data['soldier_id']} on the books and running nowhere")


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _tail(checkpoint_id: str) -> str:
    """Return a checkpoint as people name it, as w1-c1."""
    return "-".join(checkpoint_id.split("-")[-2:])


DESCRIBERS: Mapping[str, Describer] = {
    "event.detected": _noticed,
    "event.dispatched": _dispatched,
    "event.discarded": _plain(MomentKind.DECISION, "let it go: it becomes no assignment", "reason"),
    "task.started": _plain(MomentKind.RUN, "took it on"),
    "task.needs_human": _plain(MomentKind.QUESTION, "asks people", "question"),
    "task.resumed": _resumed,
    "task.completed": _ended,
    "task.failed": _failed,
    "message.human_response": _plain(MomentKind.ANSWER, "heard the answer of a person"),
    "petition.requested": _requested,
    "petition.granted": _petition("granted"),
    "petition.refused": _petition("refused"),
    "petition.performed": _petition("performed"),
    "petition.failed": _petition("could not perform"),
    "soldier.timeout": _plain(MomentKind.FAILURE, "ended a session that took too long"),
    "system.session_orphaned": _orphaned,
    "system.heartbeat_missed": _missed,
    "recovery.session_restarted": _restarted,
    "WorkflowCreated": _plain(MomentKind.RUN, "made a run of the template"),
    "WorkflowPlaced": _placed,
    "WorkflowDisplaced": _plain(MomentKind.CRASH, "counts what ran on the host as over", "reason"),
    "WorkflowStopRequested": _stop_wanted,
    "WorkflowPaused": _plain(MomentKind.RUN, "the run rests"),
    "WorkflowAwaiting": _awaits,
    "WorkflowResumed": _run_resumed,
    "WorkflowWorksUpdated": _plain(MomentKind.DECISION, "changed the works that had not begun"),
    "WorkflowCompleted": _plain(MomentKind.RUN, "every work is done"),
    "WorkflowFailed": _plain(MomentKind.FAILURE, "the run cannot go on by itself", "reason"),
    "WorkflowCancelled": _plain(MomentKind.RUN, "the run is given up"),
    "WorkStarted": _about_work(MomentKind.WORK, "an agent works on {}"),
    "WorkCompleted": _about_work(MomentKind.WORK, "{} is done and passed its checks"),
    "WorkRetried": _about_work(MomentKind.RETRY, "tries {} again", "reason"),
    "WorkReset": _about_work(MomentKind.WORK, "{} is undone and will be done again"),
    "AgentError": _about_work(MomentKind.CRASH, "the agent of {} ended by itself", "error"),
    "AgentPetitioned": _petitioned,
    "QueryResponded": _about_work(MomentKind.QUERY, "a query of {} was answered"),
    "AgentAsked": _about_work(MomentKind.QUERY, "a query of {} ended with a question"),
    "QueryFailed": _query_failed,
    "QueryReconciled": _reconciled,
    "ReportGenerated": _about_work(MomentKind.QUERY, "a report was written"),
    "ReportFailed": _plain(MomentKind.FAILURE, "a report could not be written", "error"),
    "VerifyFailed": _about_work(MomentKind.FAILURE, "{} did not pass its checks", "error"),
    "CheckpointCreated": _checkpoint,
    "CheckpointFailed": _about_work(MomentKind.FAILURE, "no checkpoint could be taken after {}", "error"),
    "RolledBack": _rolled_back,
    "RollBackFailed": _plain(MomentKind.FAILURE, "could not roll back", "error"),
    "WorkTreeFailed": _plain(MomentKind.FAILURE, "a checkout could not be made", "error"),
}
