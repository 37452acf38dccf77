"""Whether a pull request can be merged."""

from typing import Any

from kingdom.standins.github.checks.results import PASSED, latest_runs, latest_statuses
from kingdom.standins.github.commits import has_conflict


def mergeability(state: dict[str, Any], stored: dict[str, Any]) -> tuple[bool | None, str]:
    """Return `mergeable` and `mergeable_state` of a pull request. Both are unknown until a client asked once."""
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
    passed = {each["name"] for each in latest_runs(state, name, sha) if each["conclusion"] in PASSED}
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
    runs = any(each["conclusion"] not in PASSED for each in latest_runs(state, name, sha))
    return runs or any(each["state"] != "success" for each in latest_statuses(state, name, sha))
