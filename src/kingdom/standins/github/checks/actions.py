"""Report checks and statuses. Each report queues webhooks, and merges pull requests that waited only for it."""

from typing import Any, Literal

import msgspec

from kingdom.standins.github.action_context import ActionContext
from kingdom.standins.github.checks.bodies import run_body, suite_body
from kingdom.standins.github.merge_state import latest_runs, suite_result
from kingdom.standins.github.merging import merge_waiting
from kingdom.standins.github.webhooks import queue_webhooks

# The App whose runs are jobs with a log.
ACTIONS = "github-actions"
CheckStatus = Literal["queued", "in_progress", "completed"]
Conclusion = Literal["success", "failure", "neutral", "cancelled", "skipped", "timed_out", "action_required", "stale"]
StatusState = Literal["error", "failure", "pending", "success"]


class CheckOutput(msgspec.Struct):
    """The output of a run of a check."""

    title: str | None = None
    summary: str | None = None
    text: str | None = None
    annotations: list[dict[str, Any]] = []


class NewStatus(msgspec.Struct):
    """A status of a commit."""

    state: StatusState
    context: str = "default"
    description: str | None = None
    target_url: str | None = None


def report_check(
    context: ActionContext,
    repository: str,
    sha: str,
    name: str,
    *,
    app: str,
    status: CheckStatus,
    conclusion: Conclusion | None,
    output: CheckOutput,
    log: str = "",
    again: bool = False,
) -> dict[str, Any]:
    """Report a check of a commit: change its newest run unless that is completed or `again` asks for a new run."""
    found = [each for each in latest_runs(context.state_file.state, repository, sha) if each["name"] == name]
    if found and found[-1]["status"] != "completed" and not again:
        run = found[-1]
        created = False
    else:
        run = _add_run(context, repository, sha, name, app)
        created = True
    run.update(status="completed" if conclusion else status, conclusion=conclusion)
    run["output"] = msgspec.structs.asdict(output)
    run["log"] = log or run["log"]
    run["completed_at"] = context.at if run["status"] == "completed" else None
    if created:
        _queue_run(context, run, "created")
    if run["status"] == "completed":
        complete_run(context, run)
    return run


def report_status(context: ActionContext, repository: str, sha: str, asked: NewStatus) -> dict[str, Any]:
    """Report a status of a commit."""
    about = {"id": context.state_file.next_number("id"), "repository": repository, "sha": sha, "creator": context.by}
    stored = {**about, **msgspec.structs.asdict(asked), "created_at": context.at}
    context.state_file.state["statuses"].append(stored)
    payload = {name: stored[name] for name in ("id", "sha", "state", "context", "description", "target_url")}
    queue_webhooks(context, "status", None, repository, payload)
    merge_waiting(context, repository)
    return stored


def complete_run(context: ActionContext, run: dict[str, Any]) -> None:
    """Announce a completed run, and its suite if no other run of it is open."""
    _queue_run(context, run, "completed")
    state, bodies = context.state_file.state, context.bodies
    suite = next(each for each in state["check_suites"] if each["id"] == run["suite_id"])
    runs = [each for each in latest_runs(state, run["repository"], run["head_sha"]) if each["suite_id"] == suite["id"]]
    if suite_result(runs)[0] == "completed":
        suite["updated_at"] = context.at
        payload = {"check_suite": suite_body(bodies, suite)}
        queue_webhooks(context, "check_suite", "completed", run["repository"], payload)
    merge_waiting(context, run["repository"])


def run_again(context: ActionContext, run: dict[str, Any]) -> dict[str, Any]:
    """Queue another run of a check."""
    _queue_run(context, run, "rerequested")
    output = CheckOutput()
    about: dict[str, Any] = {"app": run["app"], "status": "queued", "conclusion": None, "output": output, "again": True}
    return report_check(context, run["repository"], run["head_sha"], run["name"], **about)


def _add_run(context: ActionContext, repository: str, sha: str, name: str, app: str) -> dict[str, Any]:
    state = context.state_file.state
    place = {"repository": repository, "head_sha": sha, "app": app}
    suite = next((each for each in state["check_suites"] if place.items() <= each.items()), None)
    if suite is None:
        times = {"created_at": context.at, "updated_at": context.at}
        suite = {"id": context.state_file.next_number("id"), **place, **times}
        state["check_suites"].append(suite)
    about = {"id": context.state_file.next_number("id"), "suite_id": suite["id"], "name": name, "log": ""}
    links = {"details_url": None, "external_id": "", "started_at": context.at, "completed_at": None}
    run = {**about, **place, **links}
    state["check_runs"].append(run)
    return run


def _queue_run(context: ActionContext, run: dict[str, Any], action: str) -> None:
    queue_webhooks(context, "check_run", action, run["repository"], {"check_run": run_body(context.bodies, run)})
