"""The table that describes log entries for people. Other entries are shown only if they came too late.

The table leaves out statuses that follow from another entry, and entries of a General that repeat those of its run.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from kingdom.bus.log import LogEntry
from kingdom.court.documents import Assignment
from kingdom.court.explain.spans import answer_and_person, short_id
from kingdom.court.explain.timeline import MomentKind

_COMMIT_DIGITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptionContext:
    """What a description needs besides its entry.

    `subject` describes the event. `rules` are the routing rules by assignment. `works` and `gits` are names by id.
    `from_court` is False for a run that a person started.
    """

    rules: Mapping[str, str] = field(default_factory=dict)
    subject: str = ""
    works: Mapping[str, str] = field(default_factory=dict)
    gits: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[str, Assignment] = field(default_factory=dict)
    # The petitions that needed a person's approval.
    approvals: Collection[str] = ()
    from_court: bool = True

    def work(self, data: Mapping[str, Any]) -> str:
        """Return the name of the Work that an entry is about."""
        work_id = str(data.get("workId") or "")
        return self.works.get(work_id) or (short_id(work_id) if work_id else "the run")


@dataclass(frozen=True, slots=True)
class Description:
    """The description of an entry."""

    kind: MomentKind
    what: str
    why: str = ""


Describer = Callable[[Mapping[str, Any], DescriptionContext], Description | None]


def describe(entry: LogEntry, names: DescriptionContext) -> Description | None:
    """Return the description of an entry, or None if it is not shown."""
    if ignored := entry.data.get("ignored"):
        return Description(MomentKind.LATE, f"sent {entry.type} too late: it changed nothing", str(ignored))
    describer = DESCRIBERS.get(entry.type)
    return describer(entry.data, names) if describer else None


def _noticed(data: Mapping[str, Any], names: DescriptionContext) -> Description:
    return Description(MomentKind.EVENT, f"received {data['event_type']} from {data['source']}", names.subject)


def _dispatched(data: Mapping[str, Any], names: DescriptionContext) -> Description:
    assignment_id = str(data["task_id"])
    given = names.assignments.get(assignment_id)
    rule = names.rules.get(assignment_id, "")
    reasons = [f"its rule {rule} matches" if rule else "", f"priority {given.priority}" if given else ""]
    return Description(
        MomentKind.DECISION, f"gave it to {data['target_general']} as {assignment_id}", _joined(*reasons)
    )


def _resumed(data: Mapping[str, Any], names: DescriptionContext) -> Description:
    text, person = answer_and_person(names.assignments.get(str(data["task_id"])))
    what = f"resumed {data['original_task_id']} as {data['task_id']}"
    detail = f"{person or 'a person'} answered: {text}" if text else "a person answered"
    return Description(MomentKind.ANSWER, what, detail)


def _ended(data: Mapping[str, Any], _: DescriptionContext) -> Description:
    return Description(MomentKind.RESULT, f"reported the result of {data['task_id']}: {data['status']}")


def _failed(data: Mapping[str, Any], _: DescriptionContext) -> Description:
    tries = f" after {data['retry_count']} retries" if data["retry_count"] else ""
    return Description(MomentKind.RESULT, f"failed {data['task_id']}{tries}", str(data["error"]))


def _petition(what: str) -> Describer:
    def describe_entry(data: Mapping[str, Any], _: DescriptionContext) -> Description:
        return Description(MomentKind.PETITION, f"{what} {_output(data)}", str(data.get("reason", "")))

    return describe_entry


def _requested(data: Mapping[str, Any], names: DescriptionContext) -> Description:
    if data["petition_id"] in names.approvals:
        why = "a person is asked to approve it first"
    elif data["kind"] == "github.pull_request":
        why = "it needs the checkpoint after this work"
    else:
        why = "it is performed in order"
    return Description(MomentKind.PETITION, f"queued {_output(data)}", why)


def _output(data: Mapping[str, Any]) -> str:
    return f"{data['kind']} to {data['target']}" if data.get("target") else str(data["kind"])


def _placed(data: Mapping[str, Any], _: DescriptionContext) -> Description:
    again = data["epoch"] > 1
    return Description(
        MomentKind.RECOVERY if again else MomentKind.RUN, f"placed the run {'again ' if again else ''}on {data['host']}"
    )


def _stop_wanted(data: Mapping[str, Any], _: DescriptionContext) -> Description | None:
    if data["wanted"] not in ("PAUSE", "CANCEL"):
        return None
    return Description(MomentKind.DECISION, f"asked the run to {str(data['wanted']).lower()}", str(data["reason"]))


def _run_resumed(data: Mapping[str, Any], names: DescriptionContext) -> Description:
    where = names.works.get(str(data["fromWorkId"]), short_id(str(data["fromWorkId"]))) if data["fromWorkId"] else ""
    return Description(MomentKind.RUN, f"resumed the run{f' with {where}' if where else ''}")


def _awaits(data: Mapping[str, Any], names: DescriptionContext) -> Description | None:
    return None if names.from_court else Description(MomentKind.QUESTION, "waits for a person", str(data["reason"]))


def _petitioned(data: Mapping[str, Any], names: DescriptionContext) -> Description | None:
    return None if names.from_court else Description(MomentKind.PETITION, f"its agent petitions for {data['kind']}")


def _about_work(kind: MomentKind, words: str, why: str = "") -> Describer:
    """Return a function that replaces {} in `words` by the name of a Work. `why` is the field that has the reason."""

    def describe_entry(data: Mapping[str, Any], names: DescriptionContext) -> Description:
        return Description(kind, words.format(names.work(data)), str(data.get(why) or ""))

    return describe_entry


def _plain(kind: MomentKind, words: str, why: str = "") -> Describer:
    """Return a function that always says `words`. `why` is the field that has the reason."""

    def describe_entry(data: Mapping[str, Any], _: DescriptionContext) -> Description:
        return Description(kind, words, str(data.get(why) or ""))

    return describe_entry


def _query_failed(data: Mapping[str, Any], names: DescriptionContext) -> Description:
    how = "exceeded its time limit" if data.get("timedOut") else "failed"
    return Description(
        MomentKind.FAILURE, f"the query {short_id(data['taskId'])} of {names.work(data)} {how}", str(data["error"])
    )


def _reconciled(data: Mapping[str, Any], names: DescriptionContext) -> Description:
    found = {
        "ABSENT": "it never reached the agent and is sent again",
        "ANSWERED": "it was answered, and the answer counts",
        "UNFINISHED": "it was started, and the same session continues it",
        "NO_TRANSCRIPT": "there is no transcript, so the outcome is unknown",
    }
    what = f"checked the transcript for {short_id(data['taskId'])} of {names.work(data)}"
    return Description(MomentKind.RECOVERY, what, found.get(str(data["finding"]), str(data["finding"])))


def _checkpoint(data: Mapping[str, Any], names: DescriptionContext) -> Description:
    commits = [
        f"{names.gits.get(tree, short_id(tree))} {commit[:_COMMIT_DIGITS]}" for tree, commit in data["commits"].items()
    ]
    what = f"took checkpoint {_checkpoint_name(str(data['checkpointId']))} after {names.work(data)}"
    return Description(MomentKind.CHECKPOINT, what, ", ".join(commits))


def _rolled_back(data: Mapping[str, Any], _: DescriptionContext) -> Description:
    to = f"checkpoint {_checkpoint_name(str(data['checkpointId']))}" if data["checkpointId"] else "the base"
    rescued = ", ".join(data.get("rescueRefs") or ())
    why = f"uncommitted changes are kept: {rescued}" if rescued else ""
    return Description(MomentKind.CHECKPOINT, f"rolled back to {to}", why)


def _restarted(data: Mapping[str, Any], _: DescriptionContext) -> Description:
    return Description(MomentKind.CRASH, f"restarted {data['target']}", "its process had died")


def _missed(data: Mapping[str, Any], _: DescriptionContext) -> Description:
    return Description(MomentKind.CRASH, f"missed a heartbeat of {data['target']}", f"last seen {data['last_seen']}")


def _orphaned(data: Mapping[str, Any], _: DescriptionContext) -> Description:
    return Description(MomentKind.CRASH, f"found the session {data['soldier_id']} recorded but not running")


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _checkpoint_name(checkpoint_id: str) -> str:
    """Return a checkpoint as people name it, such as w1-c1."""
    return "-".join(checkpoint_id.split("-")[-2:])


DESCRIBERS: Mapping[str, Describer] = {
    "event.detected": _noticed,
    "event.dispatched": _dispatched,
    "event.discarded": _plain(MomentKind.DECISION, "dropped it: it becomes no assignment", "reason"),
    "task.started": _plain(MomentKind.RUN, "started it"),
    "task.needs_human": _plain(MomentKind.QUESTION, "asked people", "question"),
    "task.resumed": _resumed,
    "task.completed": _ended,
    "task.failed": _failed,
    "message.human_response": _plain(MomentKind.ANSWER, "received the answer of a person"),
    "petition.requested": _requested,
    "petition.granted": _petition("granted"),
    "petition.refused": _petition("refused"),
    "petition.performed": _petition("performed"),
    "petition.failed": _petition("could not perform"),
    "followup.started": _plain(MomentKind.DECISION, "follows the pull request until it is merged"),
    "followup.round": _plain(MomentKind.DECISION, "starts a round of work on the pull request", "reasons"),
    "followup.asked": _plain(MomentKind.QUESTION, "asks whether to work on the pull request again", "reason"),
    "followup.answered": _plain(MomentKind.ANSWER, "decides about the pull request", "answer"),
    "followup.ended": _plain(MomentKind.RESULT, "no longer follows the pull request", "reason"),
    "soldier.timeout": _plain(MomentKind.FAILURE, "ended a session that exceeded its time limit"),
    "system.session_orphaned": _orphaned,
    "system.heartbeat_missed": _missed,
    "recovery.session_restarted": _restarted,
    "WorkflowCreated": _plain(MomentKind.RUN, "created a run from the template"),
    "WorkflowPlaced": _placed,
    "WorkflowDisplaced": _plain(MomentKind.CRASH, "gave up the host of the run", "reason"),
    "WorkflowStopRequested": _stop_wanted,
    "WorkflowPaused": _plain(MomentKind.RUN, "the run is paused"),
    "WorkflowAwaiting": _awaits,
    "WorkflowResumed": _run_resumed,
    "WorkflowWorksUpdated": _plain(MomentKind.DECISION, "changed the works that had not started"),
    "WorkflowCompleted": _plain(MomentKind.RUN, "all works are completed"),
    "WorkflowFailed": _plain(MomentKind.FAILURE, "the run failed", "reason"),
    "WorkflowCancelled": _plain(MomentKind.RUN, "the run was cancelled"),
    "WorkStarted": _about_work(MomentKind.WORK, "an agent works on {}"),
    "WorkCompleted": _about_work(MomentKind.WORK, "{} is completed and passed its checks"),
    "WorkRetried": _about_work(MomentKind.RETRY, "retries {}", "reason"),
    "WorkReset": _about_work(MomentKind.WORK, "{} was undone and will run again"),
    "AgentError": _about_work(MomentKind.CRASH, "the agent of {} ended unexpectedly", "error"),
    "AgentPetitioned": _petitioned,
    "QueryResponded": _about_work(MomentKind.QUERY, "a query of {} was answered"),
    "AgentAsked": _about_work(MomentKind.QUERY, "a query of {} ended with a question"),
    "QueryFailed": _query_failed,
    "QueryReconciled": _reconciled,
    "ReportGenerated": _about_work(MomentKind.QUERY, "a report was written"),
    "ReportFailed": _plain(MomentKind.FAILURE, "cannot write a report", "error"),
    "VerifyFailed": _about_work(MomentKind.FAILURE, "{} did not pass its checks", "error"),
    "CheckpointCreated": _checkpoint,
    "CheckpointFailed": _about_work(MomentKind.FAILURE, "cannot take a checkpoint after {}", "error"),
    "RolledBack": _rolled_back,
    "RollBackFailed": _plain(MomentKind.FAILURE, "cannot roll back", "error"),
    "WorkTreeFailed": _plain(MomentKind.FAILURE, "cannot create a checkout", "error"),
}
