"""The results of checks and statuses of a commit, and whether a pull request can be merged."""

from typing import Any

from kingdom.standins.github.commits import has_conflict

_PASSED = ("success", "neutral", "skipped")
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
    """Return the state of all statuses together. Without any status it is pending, as on GitHub."""
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


def mergeability(state: dict[str, Any], stored: dict[str, Any]) -> tuple[bool | None, str]:
    """Return `mergeable` and `mergeable_state` of a pull request. They are unknown if it is closed or not read yet."""
    pull = stored["pull"]
    if stored["state"] == "closed" or not pull.get("examined"):
        return None, "unknown"
    if has_conflict(state, stored):
        return False, "dirty"
    if pull["draft"]:
        return True, "draft"
    if _lacks_requirement(state, stored):
        return True, "blocked"
    return True, "clean" if not _unsuccessful(state, stored) else "unstable"


def is_ready(state: dict[str, Any], stored: dict[str, Any]) -> bool:
    """Return whether nothing prevents a merge of a pull request."""
    is_open = stored["state"] == "open" and not stored["pull"]["draft"]
    return is_open and not has_conflict(state, stored) and not _lacks_requirement(state, stored)


def _lacks_requirement(state: dict[str, Any], stored: dict[str, Any]) -> bool:
    """Return whether a required check did not succeed, or a required approval is missing."""
    rules = state["repositories"][stored["repository"]].get("protection", {})
    name, sha = stored["repository"], stored["pull"]["head"]["sha"]
    passed = {each["name"] for each in latest_runs(state, name, sha) if each["conclusion"] in _PASSED}
    passed |= {each["context"] for each in latest_statuses(state, name, sha) if each["state"] == "success"}
    verdicts: dict[str, str] = {}
    for review in state["reviews"]:
        of_pull = (review["repository"], review["number"]) == (name, stored["number"])
        if of_pull and review["state"] in ("APPROVED", "CHANGES_REQUESTED", "DISMISSED"):
            verdicts[review["user"]] = review["state"]
    approvals = list(verdicts.values()).count("APPROVED")
    needed = rules.get("approvals", 0)
    blocked = bool(needed) and "CHANGES_REQUESTED" in verdicts.values()
    return blocked or approvals < needed or not set(rules.get("checks", [])) <= passed


def _unsuccessful(state: dict[str, Any], stored: dict[str, Any]) -> bool:
    name, sha = stored["repository"], stored["pull"]["head"]["sha"]
    runs = any(each["conclusion"] not in _PASSED for each in latest_runs(state, name, sha))
    return runs or any(each["state"] != "success" for each in latest_statuses(state, name, sha))
