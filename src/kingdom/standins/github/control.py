"""The control interface of the GitHub stand-in: actions of other users, for tests and the demo."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
from aiohttp import web

from kingdom.standins.github import actions, merging, review_actions
from kingdom.standins.github.action_context import ActionContext, find_issue
from kingdom.standins.github.api import base_of, body_of, format_time, not_found
from kingdom.standins.github.commits import NO_COMMIT, commit_of_ref, set_ref
from kingdom.standins.github.review_actions import ReviewEvent
from kingdom.standins.github.review_threads import ReviewedLine
from kingdom.standins.server import CONTROL

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
    git: str | None = None


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

    event: ReviewEvent = "COMMENT"
    body: str = ""
    comments: list[ReviewedLine] = []


class PushCommit(GithubAction, kw_only=True):
    """Push a commit to the branch of a pull request, or to any branch.

    `conflict` makes every pull request into the branch conflict with it, in a repository without a git directory.
    """

    number: int | None = None
    branch: str = ""
    sha: str | None = None
    conflict: bool = False


class LabelIssue(IssueAction, kw_only=True):
    """Add a label to an issue or a pull request, or remove it."""

    label: str


class ReplyToComment(GithubAction, kw_only=True):
    """Reply to the first comment of a thread."""

    comment: int
    body: str


class ResolveThread(GithubAction, kw_only=True):
    """Resolve the thread that begins with a comment, or open it again."""

    comment: int
    resolved: bool = True


class CloseIssue(IssueAction, kw_only=True):
    """Close an issue or a pull request; `merge` merges a pull request."""

    merge: bool = False


_Action = TypeVar("_Action", bound=GithubAction)
_Handler = Callable[[web.Request], Awaitable[web.Response]]


def _add_repository(context: ActionContext, action: AddRepository) -> dict[str, Any]:
    branch, private = action.default_branch, action.private
    actions.add_repository(context, action.repository, private=private, default_branch=branch, git=action.git)
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
    review = review_actions.draft_review(context, pull, body=action.body, commit_id=None, line_comments=line_comments)
    review_actions.submit_review(context, pull, review, action.event)
    return context.bodies.review(review)


def _push(context: ActionContext, action: PushCommit) -> dict[str, Any]:
    state = context.state_file.state
    if action.number is not None:
        pull = find_issue(state, action.repository, action.number, pull=True)
        actions.push(context, pull, action.sha)
        return context.bodies.whole_pull_request(pull)
    ref = f"refs/heads/{action.branch}"
    before = commit_of_ref(state, action.repository, ref)
    after = action.sha or (state["repositories"][action.repository]["git"] and before)
    after = after or actions.new_sha(context.state_file)
    set_ref(state, action.repository, ref, after)
    actions.move_branch(context, action.repository, action.branch, before or NO_COMMIT, after, conflict=action.conflict)
    return {"ref": ref, "before": before, "after": after}


def _label(context: ActionContext, action: LabelIssue) -> dict[str, Any]:
    issue = find_issue(context.state_file.state, action.repository, action.number)
    actions.label(context, issue, [action.label])
    return context.bodies.issue(issue)


def _unlabel(context: ActionContext, action: LabelIssue) -> dict[str, Any]:
    issue = find_issue(context.state_file.state, action.repository, action.number)
    actions.unlabel(context, issue, action.label)
    return context.bodies.issue(issue)


def _reply(context: ActionContext, action: ReplyToComment) -> dict[str, Any]:
    first = _line_comment(context, action.repository, action.comment)
    pull = find_issue(context.state_file.state, action.repository, first["number"], pull=True)
    return context.bodies.review_comment(review_actions.reply(context, pull, first, action.body))


def _resolve(context: ActionContext, action: ResolveThread) -> dict[str, Any]:
    first = _line_comment(context, action.repository, action.comment)
    review_actions.set_resolved(context, first, resolved=action.resolved)
    return context.bodies.review_comment(first)


def _line_comment(context: ActionContext, repository: str, number: int) -> dict[str, Any]:
    comments: list[dict[str, Any]] = context.state_file.state["review_comments"]
    for stored in comments:
        if (stored["repository"], stored["id"]) == (repository, number):
            return stored
    raise not_found()


def _close(context: ActionContext, action: CloseIssue) -> dict[str, Any]:
    issue = find_issue(context.state_file.state, action.repository, action.number)
    if action.merge:
        merging.merge(context, issue)
    else:
        actions.close(context, issue)
    return context.bodies.issue(issue)


def _reopen(context: ActionContext, action: IssueAction) -> dict[str, Any]:
    issue = find_issue(context.state_file.state, action.repository, action.number)
    actions.reopen(context, issue)
    return context.bodies.issue(issue)


def act_on(kind: type[_Action], act: Callable[[ActionContext, _Action], dict[str, Any]]) -> _Handler:
    """Return a handler that reads an action, creates its repository if it is missing, and performs it."""

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


ROUTES = [
    web.post(f"{CONTROL}/repository", act_on(AddRepository, _add_repository)),
    web.post(f"{CONTROL}/pull_request", act_on(OpenPullRequest, _open_pull_request)),
    web.post(f"{CONTROL}/issue", act_on(OpenIssue, _open_issue)),
    web.post(f"{CONTROL}/review_request", act_on(RequestReview, _request_review)),
    web.post(f"{CONTROL}/assign", act_on(Assign, _assign)),
    web.post(f"{CONTROL}/comment", act_on(WriteComment, _comment)),
    web.post(f"{CONTROL}/review", act_on(SubmitReview, _review)),
    web.post(f"{CONTROL}/push", act_on(PushCommit, _push)),
    web.post(f"{CONTROL}/close", act_on(CloseIssue, _close)),
    web.post(f"{CONTROL}/reopen", act_on(IssueAction, _reopen)),
    web.post(f"{CONTROL}/label", act_on(LabelIssue, _label)),
    web.post(f"{CONTROL}/unlabel", act_on(LabelIssue, _unlabel)),
    web.post(f"{CONTROL}/reply", act_on(ReplyToComment, _reply)),
    web.post(f"{CONTROL}/resolve", act_on(ResolveThread, _resolve)),
]
