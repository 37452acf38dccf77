"""The results of checks and statuses of a commit."""

from typing import Any

PASSED = ("success", "neutral", "skipped")
# The conclusion of a suite is the first of these that one of its runs has.
_CONCLUSIONS = ("failure", "timed_out", "cancelled", "action_required", "stale", "success", "neutral", "skipped")


def latest_runs(state: dict[str, Any], repository: str, sha: str) -> list[dict[str, Any]]:
    """Return the newest run of each check of a commit, oldest first."""
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    for run in state["check_runs"]:
        if (run["repository"], run["head_sha"]) == (repository, sha):
            latest[run["app"], run["name"]] = run
    return list(latest.values())


def latest_statuses(state: dict[str, Any], repository: str, sha: str) -> list[dict[str, Any]]:
    """Return the newest status of each context of a commit."""
    latest: dict[str, dict[str, Any]] = {}
    for status in state["statuses"]:
        if (status["repository"], status["sha"]) == (repository, sha):
            latest[status["context"]] = status
    return list(latest.values())


def combined_state(statuses: list[dict[str, Any]]) -> str:
    """Return the state of all statuses together. No status counts as pending, as GitHub has it."""
    states = {each["state"] for each in statuses}
    if states & {"failure", "error"}:
        return "failure"
    return "success" if states == {"success"} else "pending"


def suite_result(runs: list[dict[str, Any]]) -> tuple[str, str | None]:
    """Return the status and the conclusion of a suite of runs."""
    if any(run["status"] != "completed" for run in runs):
        return ("in_progress" if any(run["status"] != "queued" for run in runs) else "queued"), None
    found = {run["conclusion"] for run in runs}
    return "completed", next((each for each in _CONCLUSIONS if each in found), "neutral")
