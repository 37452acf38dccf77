"""Reviews of pull requests, their line comments, and the threads of line comments."""

from typing import Any

import msgspec
from aiohttp import web

from kingdom.standins.github import review_actions
from kingdom.standins.github.action_context import find_issue, our_context
from kingdom.standins.github.api import (
    base_of,
    body_of,
    caller_of,
    invalid,
    not_found,
    page_of,
    repository_of,
    since_of,
)
from kingdom.standins.github.bodies import GithubBodies
from kingdom.standins.github.issues import issue_of
from kingdom.standins.github.review_actions import ReviewEvent
from kingdom.standins.server import STATE_FILE

ROUTES = web.RouteTableDef()
_PULLS = "/repos/{owner}/{name}/pulls"
_PULL = _PULLS + r"/{number:\d+}"
_REVIEW = _PULL + r"/reviews/{id:\d+}"
_COMMENT = _PULLS + r"/comments/{id:\d+}"


class ReviewedLine(msgspec.Struct):
    """A comment of a review on one line."""

    path: str
    body: str
    line: int | None = None
    position: int | None = None
    side: str = "RIGHT"
    start_line: int | None = None


class _NewReview(msgspec.Struct):
    body: str = ""
    event: ReviewEvent | None = None
    commit_id: str | None = None
    comments: list[ReviewedLine] = []


class _Submission(msgspec.Struct):
    event: ReviewEvent
    body: str = ""


class _NewLineComment(ReviewedLine):
    commit_id: str = ""
    in_reply_to: int | None = None


class _Reply(msgspec.Struct):
    body: str = ""


@ROUTES.get(_PULL + "/reviews")
async def list_reviews(request: web.Request) -> web.Response:
    """Answer with the reviews of a pull request, oldest first. Hide pending reviews of other users."""
    state = request.app[STATE_FILE].state
    bodies = GithubBodies(state, base_of(request))
    stored = bodies.parts_of(issue_of(request, pull=True), "reviews")
    shown = [each for each in stored if each["state"] != "PENDING" or each["user"] == caller_of(request).login]
    return page_of(request, shown, bodies.review)


@ROUTES.post(_PULL + "/reviews")
async def create_review(request: web.Request) -> web.Response:
    """Create a review. Without an event, the review stays pending."""
    asked, stored, context = await body_of(request, _NewReview), issue_of(request, pull=True), our_context(request)
    details = {"repository": stored["repository"], "number": stored["number"], "event": asked.event, "body": asked.body}
    line_comments = [msgspec.structs.asdict(each) for each in asked.comments]
    with context.state_file.change("POST review", **details):
        pull = issue_of(request)
        review = review_actions.draft_review(
            context, pull, body=asked.body, commit_id=asked.commit_id, line_comments=line_comments
        )
        if asked.event:
            review_actions.submit_review(context, pull, review, asked.event)
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
        review_actions.submit_review(context, issue_of(request, pull=True), review, asked.event)
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


@ROUTES.put(_REVIEW + "/dismissals")
async def dismiss_review(request: web.Request) -> web.Response:
    """Dismiss the verdict of a review."""
    context, stored = our_context(request), _review_of(request)
    details = {"repository": stored["repository"], "number": stored["number"], "id": stored["id"]}
    with context.state_file.change("PUT review dismissal", **details):
        review_actions.dismiss_review(context, issue_of(request, pull=True), _review_of(request))
    return web.json_response(context.bodies.review(_review_of(request)))


@ROUTES.post(_PULL + "/comments")
async def create_line_comment(request: web.Request) -> web.Response:
    """Write a comment on a line, or a reply in a thread."""
    asked, context, pull = await body_of(request, _NewLineComment), our_context(request), issue_of(request, pull=True)
    if asked.in_reply_to is not None:
        return _reply(request, asked.in_reply_to, asked.body)
    if not asked.commit_id:
        raise invalid("PullRequestReviewComment", "missing_field", field="commit_id")
    details = {"repository": pull["repository"], "number": pull["number"], "path": asked.path, "body": asked.body}
    names = ("path", "body", "line", "position", "side", "start_line")
    with context.state_file.change("POST review comment", **details):
        line_comment = {name: getattr(asked, name) for name in names}
        pull = issue_of(request, pull=True)
        stored = review_actions.comment_on_line(context, pull, line_comment, asked.commit_id)
    return web.json_response(context.bodies.review_comment(stored), status=201)


@ROUTES.post(_PULL + r"/comments/{id:\d+}/replies")
async def reply_to_comment(request: web.Request) -> web.Response:
    """Reply to the first comment of a thread."""
    return _reply(request, int(request.match_info["id"]), (await body_of(request, _Reply)).body)


@ROUTES.get(_COMMENT)
async def show_line_comment(request: web.Request) -> web.Response:
    """Answer with one line comment."""
    bodies = GithubBodies(request.app[STATE_FILE].state, base_of(request))
    return web.json_response(bodies.review_comment(_line_comment_of(request, int(request.match_info["id"]))))


@ROUTES.patch(_COMMENT)
async def edit_line_comment(request: web.Request) -> web.Response:
    """Change the text of a line comment."""
    body, context, number = (await body_of(request, _Reply)).body, our_context(request), int(request.match_info["id"])
    _line_comment_of(request, number)
    with context.state_file.change("PATCH review comment", id=number, body=body):
        review_actions.edit_line_comment(context, _line_comment_of(request, number), body)
    return web.json_response(context.bodies.review_comment(_line_comment_of(request, number)))


def _reply(request: web.Request, first: int, body: str) -> web.Response:
    context, pull = our_context(request), issue_of(request, pull=True)
    if not body.strip():
        raise invalid("PullRequestReviewComment", "missing_field", field="body")
    _line_comment_of(request, first)
    details = {"repository": pull["repository"], "number": pull["number"], "in_reply_to": first, "body": body}
    with context.state_file.change("POST review comment reply", **details):
        pull = find_issue(context.state_file.state, pull["repository"], pull["number"], pull=True)
        stored = review_actions.reply(context, pull, _line_comment_of(request, first), body)
    return web.json_response(context.bodies.review_comment(stored), status=201)


def _line_comment_of(request: web.Request, number: int) -> dict[str, Any]:
    comments: list[dict[str, Any]] = request.app[STATE_FILE].state["review_comments"]
    for stored in comments:
        if (stored["repository"], stored["id"]) == (repository_of(request), number):
            return stored
    raise not_found()
