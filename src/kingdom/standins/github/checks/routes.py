"""The requests for checks, statuses and job logs."""

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from kingdom.standins.github.action_context import our_context
from kingdom.standins.github.api import (
    LOGS,
    GithubRefusal,
    base_of,
    body_of,
    caller_of,
    not_found,
    page_of,
    repository_of,
)
from kingdom.standins.github.bodies import GithubBodies
from kingdom.standins.github.checks.actions import (
    CheckOutput,
    CheckStatus,
    Conclusion,
    NewStatus,
    complete_run,
    report_check,
    report_status,
    run_again,
)
from kingdom.standins.github.checks.bodies import annotation_body, run_body, status_body, suite_body
from kingdom.standins.github.commits import has_commit
from kingdom.standins.github.git_refs import resolve
from kingdom.standins.github.merge_state import combined_state, latest_runs, latest_statuses
from kingdom.standins.server import STATE_FILE

ROUTES = web.RouteTableDef()
_REPOSITORY = "/repos/{owner}/{name}"
_COMMIT = _REPOSITORY + "/commits/{ref:.+}"
_RUN = _REPOSITORY + r"/check-runs/{id:\d+}"
_SUITE = _REPOSITORY + r"/check-suites/{id:\d+}"
_JOB = _REPOSITORY + r"/actions/jobs/{id:\d+}"


class _NewRun(msgspec.Struct):
    name: str = ""
    head_sha: str = ""
    status: CheckStatus = "queued"
    conclusion: Conclusion | None = None
    details_url: str | None = None
    external_id: str = ""
    output: CheckOutput = msgspec.field(default_factory=CheckOutput)


class _RunChange(msgspec.Struct):
    status: CheckStatus | None = None
    conclusion: Conclusion | None = None
    output: CheckOutput | None = None


@ROUTES.post(_REPOSITORY + "/check-runs")
async def create_run(request: web.Request) -> web.Response:
    """Create a run of a check. Only Apps can do that."""
    name, asked = repository_of(request), await body_of(request, _NewRun)
    context, app = our_context(request), _app_of(request)
    if not asked.name or not asked.head_sha:
        raise GithubRefusal(422, "Invalid request.\n\nname and head_sha weren't supplied.")
    with context.state_file.change("POST check run", repository=name, name=asked.name, sha=asked.head_sha):
        result: dict[str, Any] = {"status": asked.status, "conclusion": asked.conclusion, "output": asked.output}
        run = report_check(context, name, asked.head_sha, asked.name, app=app, again=True, **result)
        run.update(details_url=asked.details_url, external_id=asked.external_id)
    return web.json_response(run_body(context.bodies, run), status=201)


@ROUTES.patch(_RUN)
async def change_run(request: web.Request) -> web.Response:
    """Change a run of a check. Only the App that created it can do that."""
    asked, context, app = await body_of(request, _RunChange), our_context(request), _app_of(request)
    if _run_of(request)["app"] != app:
        raise GithubRefusal(403, "Check run can only be modified by the GitHub App that created it.")
    with context.state_file.change("PATCH check run", id=int(request.match_info["id"])):
        run = _run_of(request)
        run["output"] = msgspec.structs.asdict(asked.output) if asked.output else run["output"]
        status = "completed" if asked.conclusion else asked.status or run["status"]
        run.update(status=status, conclusion=asked.conclusion)
        if run["status"] == "completed":
            run["completed_at"] = context.at
            complete_run(context, run)
    return web.json_response(run_body(context.bodies, run))


@ROUTES.get(_RUN)
async def show_run(request: web.Request) -> web.Response:
    """Answer with one run of a check."""
    return web.json_response(run_body(_bodies(request), _run_of(request)))


@ROUTES.get(_RUN + "/annotations")
async def list_annotations(request: web.Request) -> web.Response:
    """Answer with the annotations of a run."""
    return page_of(request, _run_of(request)["output"]["annotations"], annotation_body)


@ROUTES.get(_COMMIT + "/check-runs")
async def list_runs(request: web.Request) -> web.Response:
    """Answer with the newest run of each check of a commit, or with all runs."""
    name, sha, state = repository_of(request), _sha_of(request), request.app[STATE_FILE].state
    place = (name, sha)
    runs = latest_runs(state, name, sha)
    if request.query.get("filter") == "all":
        runs = [each for each in state["check_runs"] if (each["repository"], each["head_sha"]) == place]
    return _page_of_runs(request, runs)


@ROUTES.get(_COMMIT + "/check-suites")
async def list_suites(request: web.Request) -> web.Response:
    """Answer with the suites of a commit, one for each App."""
    place, state = (repository_of(request), _sha_of(request)), request.app[STATE_FILE].state
    suites = [each for each in state["check_suites"] if (each["repository"], each["head_sha"]) == place]
    bodies = _bodies(request)
    return _counted_page(request, suites, "check_suites", lambda suite: suite_body(bodies, suite))


@ROUTES.get(_SUITE)
async def show_suite(request: web.Request) -> web.Response:
    """Answer with one suite."""
    return web.json_response(suite_body(_bodies(request), _suite_of(request)))


@ROUTES.get(_SUITE + "/check-runs")
async def list_runs_of_suite(request: web.Request) -> web.Response:
    """Answer with the newest run of each check of a suite."""
    suite, state = _suite_of(request), request.app[STATE_FILE].state
    runs = latest_runs(state, suite["repository"], suite["head_sha"])
    return _page_of_runs(request, [each for each in runs if each["suite_id"] == suite["id"]])


@ROUTES.post(_RUN + "/rerequest")
async def rerequest_run(request: web.Request) -> web.Response:
    """Ask for another run of a check."""
    _rerun(request, "POST check run rerequest")
    return web.json_response({}, status=201)


@ROUTES.get(_JOB + "/logs")
async def show_log(request: web.Request) -> web.Response:
    """Redirect to the log of a job. A job has the id of its run."""
    run = _run_of(request)
    if not run["log"]:
        raise not_found()
    return web.Response(status=302, headers={"Location": f"{base_of(request)}{LOGS}/{run['id']}"})


@ROUTES.get(LOGS + r"/{id:\d+}")
async def download_log(request: web.Request) -> web.Response:
    """Answer with the log of a job, without authentication, as the storage of GitHub does."""
    for run in request.app[STATE_FILE].state["check_runs"]:
        if run["id"] == int(request.match_info["id"]):
            return web.Response(text=run["log"])
    raise not_found()


@ROUTES.post(_JOB + "/rerun")
async def rerun_job(request: web.Request) -> web.Response:
    """Run a job again."""
    _rerun(request, "POST job rerun")
    return web.json_response({}, status=201)


@ROUTES.get(_COMMIT + "/status")
async def show_combined_status(request: web.Request) -> web.Response:
    """Answer with the state of all statuses of a commit together."""
    name, sha, bodies = repository_of(request), _sha_of(request), _bodies(request)
    statuses = latest_statuses(bodies.state, name, sha)
    body = {"state": combined_state(statuses), "sha": sha, "total_count": len(statuses)}
    body["statuses"] = [status_body(bodies, each) for each in statuses]
    return web.json_response(body | {"repository": bodies.repository(name)})


@ROUTES.get(_COMMIT + "/statuses")
async def list_statuses(request: web.Request) -> web.Response:
    """Answer with all statuses of a commit, newest first."""
    return _page_of_statuses(request, _sha_of(request))


@ROUTES.get(_REPOSITORY + "/statuses/{sha}")
async def list_statuses_of_sha(request: web.Request) -> web.Response:
    """Answer with all statuses of a commit, newest first."""
    return _page_of_statuses(request, request.match_info["sha"])


@ROUTES.post(_REPOSITORY + "/statuses/{sha}")
async def create_status(request: web.Request) -> web.Response:
    """Report a status of a commit."""
    name, asked = repository_of(request), await body_of(request, NewStatus)
    context, sha = our_context(request), request.match_info["sha"]
    with context.state_file.change("POST status", repository=name, sha=sha, context=asked.context, state=asked.state):
        stored = report_status(context, name, sha, asked)
    return web.json_response(status_body(context.bodies, stored), status=201)


@ROUTES.get(_COMMIT)
async def show_commit(request: web.Request) -> web.Response:
    """Answer with a commit. Its path is the prefix of the paths above, so it is the last route."""
    name, sha, state = repository_of(request), _sha_of(request), request.app[STATE_FILE].state
    if not has_commit(state, name, sha):
        raise GithubRefusal(422, f"No commit found for SHA: {sha}")
    url = f"{base_of(request)}/repos/{name}/commits/{sha}"
    return web.json_response({"sha": sha, "node_id": f"C_{sha[:12]}", "url": url, "html_url": url})


def _rerun(request: web.Request, call: str) -> None:
    context, run = our_context(request), _run_of(request)
    with context.state_file.change(call, repository=run["repository"], name=run["name"], sha=run["head_sha"]):
        run_again(context, _run_of(request))


def _app_of(request: web.Request) -> str:
    app = caller_of(request).app
    if app is None:
        raise GithubRefusal(403, "You must authenticate via a GitHub App.")
    return app


def _bodies(request: web.Request) -> GithubBodies:
    return GithubBodies(request.app[STATE_FILE].state, base_of(request))


def _run_of(request: web.Request) -> dict[str, Any]:
    return _part_of(request, "check_runs")


def _suite_of(request: web.Request) -> dict[str, Any]:
    return _part_of(request, "check_suites")


def _part_of(request: web.Request, kind: str) -> dict[str, Any]:
    place = (repository_of(request), int(request.match_info["id"]))
    parts: list[dict[str, Any]] = request.app[STATE_FILE].state[kind]
    for part in parts:
        if (part["repository"], part["id"]) == place:
            return part
    raise not_found()


def _sha_of(request: web.Request) -> str:
    """Return the commit in the path, which may be the name of a branch or a tag."""
    name, ref, state = repository_of(request), request.match_info["ref"], request.app[STATE_FILE].state
    return resolve(state, name, ref)


def _page_of_runs(request: web.Request, runs: list[dict[str, Any]]) -> web.Response:
    query, bodies = request.query, _bodies(request)
    shown = [
        run
        for run in runs
        if query.get("check_name", run["name"]) == run["name"] and query.get("status", run["status"]) == run["status"]
    ]
    return _counted_page(request, shown, "check_runs", lambda run: run_body(bodies, run))


def _counted_page(
    request: web.Request,
    items: list[dict[str, Any]],
    name: str,
    render: Callable[[dict[str, Any]], dict[str, Any]],
) -> web.Response:
    """Answer with a page inside a document that also has the total count."""
    page = page_of(request, items, render)
    shown = msgspec.json.decode(page.body if isinstance(page.body, bytes) else b"[]")
    links = {"Link": page.headers["Link"]} if "Link" in page.headers else {}
    return web.json_response({"total_count": len(items), name: shown}, headers=links)


def _page_of_statuses(request: web.Request, sha: str) -> web.Response:
    place, bodies = (repository_of(request), sha), _bodies(request)
    found = [each for each in bodies.state["statuses"] if (each["repository"], each["sha"]) == place]
    return page_of(request, found[::-1], lambda status: status_body(bodies, status))
