"""The JSON documents of checks and statuses."""

from typing import Any

from kingdom.standins.github.api import user_id
from kingdom.standins.github.bodies import GithubBodies
from kingdom.standins.github.merge_state import latest_runs, suite_result


def run_body(bodies: GithubBodies, run: dict[str, Any]) -> dict[str, Any]:
    """Return a run of a check."""
    url = f"{bodies.base}/repos/{run['repository']}/check-runs/{run['id']}"
    page = f"{bodies.base}/{run['repository']}/runs/{run['id']}"
    output = {name: run["output"][name] for name in ("title", "summary", "text")}
    output |= {"annotations_count": len(run["output"]["annotations"]), "annotations_url": f"{url}/annotations"}
    return {
        "id": run["id"],
        "node_id": f"CR_{run['id']}",
        "name": run["name"],
        "head_sha": run["head_sha"],
        "external_id": run["external_id"],
        "url": url,
        "html_url": page,
        "details_url": run["details_url"] or page,
        "status": run["status"],
        "conclusion": run["conclusion"],
        "started_at": run["started_at"],
        "completed_at": run["completed_at"],
        "output": output,
        "check_suite": {"id": run["suite_id"]},
        "app": _app_body(bodies, run["app"]),
        "pull_requests": _pull_references(bodies, run),
    }


def suite_body(bodies: GithubBodies, suite: dict[str, Any]) -> dict[str, Any]:
    """Return a suite: all runs of one App for a commit."""
    runs = latest_runs(bodies.state, suite["repository"], suite["head_sha"])
    runs = [run for run in runs if run["suite_id"] == suite["id"]]
    status, conclusion = suite_result(runs)
    url = f"{bodies.base}/repos/{suite['repository']}/check-suites/{suite['id']}"
    pulls = _pull_references(bodies, suite)
    return {
        "id": suite["id"],
        "node_id": f"CS_{suite['id']}",
        "head_branch": pulls[0]["head"]["ref"] if pulls else None,
        "head_sha": suite["head_sha"],
        "status": status,
        "conclusion": conclusion,
        "url": url,
        "before": None,
        "after": suite["head_sha"],
        "pull_requests": pulls,
        "app": _app_body(bodies, suite["app"]),
        "created_at": suite["created_at"],
        "updated_at": suite["updated_at"],
        "latest_check_runs_count": len(runs),
        "check_runs_url": f"{url}/check-runs",
    }


def status_body(bodies: GithubBodies, status: dict[str, Any]) -> dict[str, Any]:
    """Return a status of a commit."""
    names = ("id", "state", "description", "target_url", "context", "created_at")
    more = {"node_id": f"SC_{status['id']}", "updated_at": status["created_at"]}
    url = f"{bodies.base}/repos/{status['repository']}/statuses/{status['sha']}"
    return {**{name: status[name] for name in names}, **more, "url": url, "creator": bodies.user(status["creator"])}


def annotation_body(stored: dict[str, Any]) -> dict[str, Any]:
    """Return an annotation of a run."""
    empty = {"start_column": None, "end_column": None, "title": None, "raw_details": None, "blob_href": ""}
    return {**empty, "start_line": 1, "end_line": 1, "annotation_level": "failure", **stored}


def _app_body(bodies: GithubBodies, slug: str) -> dict[str, Any]:
    app = next((each for each in bodies.state["apps"] if each["slug"] == slug), {"id": user_id(slug)})
    return {"id": app["id"], "slug": slug, "name": slug, "node_id": f"A_{app['id']}", "owner": bodies.user("github")}


def _pull_references(bodies: GithubBodies, part: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the open pull requests whose head is the commit of a run or suite."""
    name = part["repository"]
    return [
        {
            "id": each["id"],
            "number": each["number"],
            "url": f"{bodies.base}/repos/{name}/pulls/{each['number']}",
            "head": {"ref": each["pull"]["head"]["ref"], "sha": each["pull"]["head"]["sha"]},
            "base": {"ref": each["pull"]["base"]["ref"], "sha": each["pull"]["base"]["sha"]},
        }
        for each in bodies.state["issues"][name].values()
        if each["pull"] and each["state"] == "open" and each["pull"]["head"]["sha"] == part["head_sha"]
    ]
