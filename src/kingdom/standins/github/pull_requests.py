"""Pull requests."""

from typing import Any

import msgspec
from aiohttp import web

from kingdom.standins.github import actions
from kingdom.standins.github.action_context import our_context
from kingdom.standins.github.api import base_of, body_of, invalid, page_of, repository_of
from kingdom.standins.github.bodies import GithubBodies
from kingdom.standins.github.commits import files_of
from kingdom.standins.github.issues import change_issue, issue_of, sort
from kingdom.standins.server import STATE_FILE

ROUTES = web.RouteTableDef()
_PULLS = "/repos/{owner}/{name}/pulls"
_PULL = _PULLS + r"/{number:\d+}"


class _NewPullRequest(msgspec.Struct):
    head: str = ""
    base: str = ""
    title: str = ""
    body: str | None = None
    draft: bool = False


class _Reviewers(msgspec.Struct):
    reviewers: list[str] = []


@ROUTES.get(_PULLS)
async def list_pull_requests(request: web.Request) -> web.Response:
    """Answer with the pull requests of a repository, filtered by `head` and `base`."""
    name, query, state = repository_of(request), request.query, request.app[STATE_FILE].state
    shown = [
        stored
        for stored in state["issues"][name].values()
        if (pull := stored["pull"])
        and query.get("state", "open") in ("all", stored["state"])
        and query.get("head", "") in ("", f"{pull['head']['owner']}:{pull['head']['ref']}")
        and query.get("base", "") in ("", pull["base"]["ref"])
    ]
    return page_of(request, sort(request, shown), GithubBodies(state, base_of(request)).pull_request)


@ROUTES.post(_PULLS)
async def create_pull_request(request: web.Request) -> web.Response:
    """Open a pull request."""
    name, asked = repository_of(request), await body_of(request, _NewPullRequest)
    for field in ("head", "base", "title"):
        if not getattr(asked, field):
            raise invalid("PullRequest", "missing_field", field=field)
    context, details = our_context(request), msgspec.structs.asdict(asked)
    with context.state_file.change("POST pull request", repository=name, **details):
        stored = actions.open_pull_request(context, name, **details)
    return web.json_response(context.bodies.whole_pull_request(stored), status=201)


@ROUTES.get(_PULL)
async def show_pull_request(request: web.Request) -> web.Response:
    """Answer with a pull request. The first answer after a change does not contain its mergeability yet."""
    bodies, stored = GithubBodies(request.app[STATE_FILE].state, base_of(request)), issue_of(request, pull=True)
    answer = web.json_response(bodies.whole_pull_request(stored))
    stored["pull"]["examined"] = True
    return answer


@ROUTES.patch(_PULL)
async def edit_pull_request(request: web.Request) -> web.Response:
    """Change title, text or state of a pull request."""
    context = await change_issue(request, "PATCH pull request", pull=True)
    return web.json_response(context.bodies.whole_pull_request(issue_of(request)))


@ROUTES.get(_PULL + "/files")
async def list_files(request: web.Request) -> web.Response:
    """Answer with the files that a pull request changes."""
    stored = issue_of(request, pull=True)
    sha = stored["pull"]["head"]["sha"]

    def render(file: dict[str, Any]) -> dict[str, Any]:
        return {"sha": sha, **file, "changes": file["additions"] + file["deletions"]}

    return page_of(request, files_of(request.app[STATE_FILE].state, stored), render)


@ROUTES.get(_PULL + "/requested_reviewers")
async def list_requested_reviewers(request: web.Request) -> web.Response:
    """Answer with the requested reviewers."""
    bodies = GithubBodies(request.app[STATE_FILE].state, base_of(request))
    asked = issue_of(request, pull=True)["pull"]["requested_reviewers"]
    return web.json_response({"users": [bodies.user(each) for each in asked], "teams": []})


@ROUTES.post(_PULL + "/requested_reviewers")
async def request_reviewers(request: web.Request) -> web.Response:
    """Request reviews."""
    reviewers = (await body_of(request, _Reviewers)).reviewers
    context, stored = our_context(request), issue_of(request, pull=True)
    details = {"repository": stored["repository"], "number": stored["number"], "reviewers": reviewers}
    with context.state_file.change("POST requested reviewers", **details):
        actions.request_review(context, issue_of(request), reviewers)
    return web.json_response(context.bodies.pull_request(issue_of(request)), status=201)


@ROUTES.delete(_PULL + "/requested_reviewers")
async def withdraw_reviewers(request: web.Request) -> web.Response:
    """Withdraw review requests."""
    reviewers = (await body_of(request, _Reviewers)).reviewers
    context, stored = our_context(request), issue_of(request, pull=True)
    details = {"repository": stored["repository"], "number": stored["number"], "reviewers": reviewers}
    with context.state_file.change("DELETE requested reviewers", **details):
        actions.withdraw_review_request(context, issue_of(request), reviewers)
    return web.json_response(context.bodies.pull_request(issue_of(request)))
