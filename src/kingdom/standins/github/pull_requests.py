"""Pull requests and their reviews."""

from typing import Any

import msgspec
from aiohttp import web

from kingdom.standins.github import actions
from kingdom.standins.github.action_context import our_context
from kingdom.standins.github.api import base_of, body_of, invalid, not_found, page_of, repository_of, since_of
from kingdom.standins.github.bodies import GithubBodies
from kingdom.standins.github.git_refs import commit_of_ref
from kingdom.standins.github.issues import change_issue, issue_of, sort
from kingdom.standins.server import STATE_FILE

ROUTES = web.RouteTableDef()
_PULLS = "/repos/{owner}/{name}/pulls"
_PULL = _PULLS + r"/{number:\d+}"
_REVIEW = _PULL + r"/reviews/{id:\d+}"


class _NewPullRequest(msgspec.Struct):
    head: str = ""
    base: str = ""
    title: str = ""
    body: str | None = None
    draft: bool = False


class _Reviewers(msgspec.Struct):
    reviewers: list[str] = []


class LineComment(msgspec.Struct):
    """A comment of a review on one line."""

    path: str
    body: str
    line: int | None = None
    position: int | None = None
    side: str = "RIGHT"
    start_line: int | None = None


class _NewReview(msgspec.Struct):
    body: str = ""
    event: actions.ReviewEvent | None = None
    commit_id: str | None = None
    comments: list[LineComment] = []


class _Submission(msgspec.Struct):
    event: actions.ReviewEvent
    body: str = ""


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
    sha = commit_of_ref(context.state_file.state, name, f"refs/heads/{asked.head}")
    with context.state_file.change("POST pull request", repository=name, **details):
        stored = actions.open_pull_request(context, name, sha=sha, **details)
    return web.json_response(context.bodies.whole_pull_request(stored), status=201)


@ROUTES.get(_PULL)
async def show_pull_request(request: web.Request) -> web.Response:
    """Answer with a pull request."""
    bodies = GithubBodies(request.app[STATE_FILE].state, base_of(request))
    return web.json_response(bodies.whole_pull_request(issue_of(request, pull=True)))


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

    return page_of(request, stored["pull"]["files"], render)


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


@ROUTES.get(_PULL + "/reviews")
async def list_reviews(request: web.Request) -> web.Response:
    """Answer with the reviews of a pull request, oldest first. Hide pending reviews of other users."""
    state = request.app[STATE_FILE].state
    bodies = GithubBodies(state, base_of(request))
    stored = bodies.parts_of(issue_of(request, pull=True), "reviews")
    shown = [each for each in stored if each["state"] != "PENDING" or each["user"] == state["login"]]
    return page_of(request, shown, bodies.review)


@ROUTES.post(_PULL + "/reviews")
async def create_review(request: web.Request) -> web.Response:
    """Create a review. Without an event, the review stays pending."""
    asked, stored, context = await body_of(request, _NewReview), issue_of(request, pull=True), our_context(request)
    details = {"repository": stored["repository"], "number": stored["number"], "event": asked.event, "body": asked.body}
    line_comments = [msgspec.structs.asdict(each) for each in asked.comments]
    with context.state_file.change("POST review", **details):
        pull = issue_of(request)
        review = actions.draft_review(
            context, pull, body=asked.body, commit_id=asked.commit_id, line_comments=line_comments
        )
        if asked.event:
            actions.submit_review(context, pull, review, asked.event)
    return web.json_response(context.bodies.review(review))


@ROUTES.get(_REVIEW)
async def show_review(request: web.Request) -> web.Response:
    """Answer with one review."""
    return web.json_response(GithubBodies(request.app[STATE_FILE].state, base_of(request)).review(_review_of(request)))


@ROUTES.post(_REVIEW + "/events")
async def submit_review(request: web.Request) -> web.Response:
    """Submit a pending review."""
    asked, stored, context = await body_of(request, _Submission), _review_of(request), our_context(request)
    details = {"repository": stored["repository"], "number": stored["number"], "event": asked.event}
    with context.state_file.change("POST review event", **details):
        review = _review_of(request)
        review["body"] = asked.body or review["body"]
        actions.submit_review(context, issue_of(request, pull=True), review, asked.event)
    return web.json_response(context.bodies.review(review))


@ROUTES.get(_REVIEW + "/comments")
async def list_comments_of_review(request: web.Request) -> web.Response:
    """Answer with the line comments of a review."""
    review, bodies = _review_of(request), GithubBodies(request.app[STATE_FILE].state, base_of(request))
    stored = bodies.parts_of(issue_of(request, pull=True), "review_comments")
    return page_of(request, [each for each in stored if each["review_id"] == review["id"]], bodies.review_comment)


@ROUTES.get(_PULL + "/comments")
async def list_review_comments(request: web.Request) -> web.Response:
    """Answer with the line comments of all submitted reviews, oldest first."""
    bodies, since = GithubBodies(request.app[STATE_FILE].state, base_of(request)), since_of(request)
    pull = issue_of(request, pull=True)
    hidden = {each["id"] for each in bodies.parts_of(pull, "reviews") if each["state"] == "PENDING"}
    stored = bodies.parts_of(pull, "review_comments")
    shown = [each for each in stored if each["review_id"] not in hidden and each["created_at"] >= since]
    return page_of(request, shown, bodies.review_comment)


def _review_of(request: web.Request) -> dict[str, Any]:
    bodies = GithubBodies(request.app[STATE_FILE].state, base_of(request))
    for stored in bodies.parts_of(issue_of(request, pull=True), "reviews"):
        if stored["id"] == int(request.match_info["id"]):
            return stored
    raise not_found()
