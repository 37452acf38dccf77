"""The control interface of the GitHub stand-in: actions of other users and rate limits, for tests and the demo."""

import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
from aiohttp import web

from kingdom.standins.github import actions
from kingdom.standins.github.action_context import ActionContext, find_issue
from kingdom.standins.github.api import base_of, body_of, format_time, limits_of
from kingdom.standins.github.pull_requests import LineComment
from kingdom.standins.github.webhooks import add_hook
from kingdom.standins.server import CONTROL, STATE_FILE

Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class GithubAction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An action of the user `by` in a repository. The default of `at` is now.

    `reason` replaces the usual reason of our user's notification.
    """

    repository: str
    by: str = "octocat"
    at: Moment | None = None
    reason: str | None = None


class IssueAction(GithubAction, kw_only=True):
    """An action on an issue or a pull request."""

    number: int


class AddRepository(GithubAction, kw_only=True):
    """Create a repository. Any other action also creates a missing repository."""

    private: bool = False
    default_branch: str = "main"


class PullRequestFile(msgspec.Struct, kw_only=True):
    """A file that a pull request changes."""

    filename: str
    status: str = "modified"
    additions: int = 0
    deletions: int = 0
    patch: str = ""


class OpenPullRequest(GithubAction, kw_only=True):
    """Open a pull request, and request reviews if there are reviewers."""

    title: str
    body: str | None = None
    head: str
    base: str = "main"
    draft: bool = False
    sha: str | None = None
    files: list[PullRequestFile] = []
    reviewers: list[str] = []


class OpenIssue(GithubAction, kw_only=True):
    """Open an issue."""

    title: str
    body: str | None = None
    labels: list[str] = []
    assignees: list[str] = []


class RequestReview(IssueAction, kw_only=True):
    """Request a review, by default from our user."""

    reviewers: list[str] | None = None


class Assign(IssueAction, kw_only=True):
    """Assign users, by default our user."""

    assignees: list[str] | None = None


class WriteComment(IssueAction, kw_only=True):
    """Write a comment. `@login` in the body mentions a user."""

    body: str


class SubmitReview(IssueAction, kw_only=True):
    """Submit a review."""

    event: actions.ReviewEvent = "COMMENT"
    body: str = ""
    comments: list[LineComment] = []


class PushCommit(IssueAction, kw_only=True):
    """Push a commit to the branch of a pull request."""

    sha: str | None = None


class CloseIssue(IssueAction, kw_only=True):
    """Close an issue or a pull request; `merge` merges a pull request."""

    merge: bool = False


class AddHook(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Register a webhook, by default for all repositories."""

    url: str
    secret: str = ""
    repository: str | None = None
    events: tuple[str, ...] = ("*",)
    content_type: str = "json"


class SecondaryRateLimit(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A secondary rate limit for the next `times` requests with a method."""

    times: int = 1
    retry_after: int | None = 60
    status: int = 403
    method: str = "*"


class RateLimitChange(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """New rate limits. Omitted values stay unchanged."""

    limit: int | None = None
    remaining: int | None = None
    reset_seconds: int | None = None
    status: int | None = None
    poll_interval: int | None = None
    secondary: SecondaryRateLimit | None = None


_Action = TypeVar("_Action", bound=GithubAction)
_Handler = Callable[[web.Request], Awaitable[web.Response]]


def _add_repository(context: ActionContext, action: AddRepository) -> dict[str, Any]:
    actions.add_repository(context, action.repository, private=action.private, default_branch=action.default_branch)
    return context.bodies.repository(action.repository)


def _open_pull_request(context: ActionContext, action: OpenPullRequest) -> dict[str, Any]:
    pull = actions.open_pull_request(
        context,
        action.repository,
        title=action.title,
        body=action.body,
        head=action.head,
        base=action.base,
        draft=action.draft,
        sha=action.sha,
        files=[msgspec.structs.asdict(file) for file in action.files],
    )
    actions.request_review(context, pull, action.reviewers)
    return context.bodies.whole_pull_request(pull)


def _open_issue(context: ActionContext, action: OpenIssue) -> dict[str, Any]:
    issue = actions.open_issue(
        context,
        action.repository,
        title=action.title,
        body=action.body,
        labels=action.labels,
        assignees=action.assignees,
    )
    return context.bodies.issue(issue)


def _request_review(context: ActionContext, action: RequestReview) -> dict[str, Any]:
    pull = find_issue(context.state_file.state, action.repository, action.number, pull=True)
    us = [context.state_file.state["login"]]
    actions.request_review(context, pull, us if action.reviewers is None else action.reviewers)
    return context.bodies.whole_pull_request(pull)


def _assign(context: ActionContext, action: Assign) -> dict[str, Any]:
    issue = find_issue(context.state_file.state, action.repository, action.number)
    us = [context.state_file.state["login"]]
    actions.assign(context, issue, us if action.assignees is None else action.assignees)
    return context.bodies.issue(issue)


def _comment(context: ActionContext, action: WriteComment) -> dict[str, Any]:
    issue = find_issue(context.state_file.state, action.repository, action.number)
    return context.bodies.comment(actions.comment(context, issue, action.body))


def _review(context: ActionContext, action: SubmitReview) -> dict[str, Any]:
    pull = find_issue(context.state_file.state, action.repository, action.number, pull=True)
    line_comments = [msgspec.structs.asdict(each) for each in action.comments]
    review = actions.draft_review(context, pull, body=action.body, commit_id=None, line_comments=line_comments)
    actions.submit_review(context, pull, review, action.event)
    return context.bodies.review(review)


def _push(context: ActionContext, action: PushCommit) -> dict[str, Any]:
    pull = find_issue(context.state_file.state, action.repository, action.number, pull=True)
    actions.push(context, pull, action.sha)
    return context.bodies.whole_pull_request(pull)


def _close(context: ActionContext, action: CloseIssue) -> dict[str, Any]:
    issue = find_issue(context.state_file.state, action.repository, action.number)
    actions.close(context, issue, merge=action.merge)
    return context.bodies.issue(issue)


def _reopen(context: ActionContext, action: IssueAction) -> dict[str, Any]:
    issue = find_issue(context.state_file.state, action.repository, action.number)
    actions.reopen(context, issue)
    return context.bodies.issue(issue)


def _handler(kind: type[_Action], act: Callable[[ActionContext, _Action], dict[str, Any]]) -> _Handler:
    async def handle(request: web.Request) -> web.Response:
        action = await body_of(request, kind)
        at, base = format_time(action.at), base_of(request)
        context = ActionContext(application=request.app, base=base, by=action.by, at=at, reason=action.reason)
        with context.state_file.change():
            if kind is not AddRepository:
                actions.add_repository(context, action.repository)
            done = act(context, action)
        return web.json_response(done, status=201)

    return handle


async def _add_hook(request: web.Request) -> web.Response:
    asked = await body_of(request, AddHook)
    context = ActionContext(application=request.app, base=base_of(request), by="octocat", at=format_time())
    with context.state_file.change():
        if asked.repository:
            actions.add_repository(context, asked.repository)
        hook = add_hook(context, **msgspec.to_builtins(asked))
    return web.json_response(context.bodies.hook(hook), status=201)


async def _set_limits(request: web.Request) -> web.Response:
    asked = await body_of(request, RateLimitChange)
    limits_of(request.app[STATE_FILE])
    with request.app[STATE_FILE].change() as state:
        limits = state["limits"]
        for name in ("limit", "status", "poll_interval"):
            if getattr(asked, name) is not None:
                limits[name] = getattr(asked, name)
        if asked.remaining is not None:
            limits["used"] = limits["limit"] - asked.remaining
        if asked.reset_seconds is not None:
            limits["reset"] = int(time.time()) + asked.reset_seconds
        if asked.secondary:
            limits["secondary"] = msgspec.structs.asdict(asked.secondary)
    return web.json_response(limits)


ROUTES = [
    web.post(f"{CONTROL}/repository", _handler(AddRepository, _add_repository)),
    web.post(f"{CONTROL}/pull_request", _handler(OpenPullRequest, _open_pull_request)),
    web.post(f"{CONTROL}/issue", _handler(OpenIssue, _open_issue)),
    web.post(f"{CONTROL}/review_request", _handler(RequestReview, _request_review)),
    web.post(f"{CONTROL}/assign", _handler(Assign, _assign)),
    web.post(f"{CONTROL}/comment", _handler(WriteComment, _comment)),
    web.post(f"{CONTROL}/review", _handler(SubmitReview, _review)),
    web.post(f"{CONTROL}/push", _handler(PushCommit, _push)),
    web.post(f"{CONTROL}/close", _handler(CloseIssue, _close)),
    web.post(f"{CONTROL}/reopen", _handler(IssueAction, _reopen)),
    web.post(f"{CONTROL}/hook", _add_hook),
    web.post(f"{CONTROL}/limits", _set_limits),
]
