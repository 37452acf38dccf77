"""Where a test or a demo has other people do things, and sets limits; nothing of the real server is here."""

import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
from aiohttp import web

from kingdom.standins.github import actions
from kingdom.standins.github.api import base_of, body_of, limits_of, stamp
from kingdom.standins.github.happening import Happening, find
from kingdom.standins.github.pull_requests import Remark
from kingdom.standins.github.webhooks import add_hook
from kingdom.standins.server import BOOK, CONTROL

Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class Deed(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What somebody does in a repository; `reason` overrides why our user is told of it, `at` when it is."""

    repository: str
    by: str = "octocat"
    at: Moment | None = None
    reason: str | None = None


class DeedOnIssue(Deed, kw_only=True):
    """What somebody does to an issue or a pull request."""

    number: int


class AddRepository(Deed, kw_only=True):
    """A repository comes to be; it also does when the first thing happens in it."""

    private: bool = False
    default_branch: str = "main"


class File(msgspec.Struct, kw_only=True):
    """A file that a pull request changes."""

    filename: str
    status: str = "modified"
    additions: int = 0
    deletions: int = 0
    patch: str = ""


class OpenPullRequest(Deed, kw_only=True):
    """A pull request is opened, and a review is asked for if there are reviewers."""

    title: str
    body: str | None = None
    head: str
    base: str = "main"
    draft: bool = False
    sha: str | None = None
    files: list[File] = []
    reviewers: list[str] = []


class OpenIssue(Deed, kw_only=True):
    """An issue is opened."""

    title: str
    body: str | None = None
    labels: list[str] = []
    assignees: list[str] = []


class RequestReview(DeedOnIssue, kw_only=True):
    """A review is asked for, perhaps again; of our user unless somebody else is named."""

    reviewers: list[str] | None = None


class Assign(DeedOnIssue, kw_only=True):
    """Somebody is made responsible; our user unless somebody else is named."""

    assignees: list[str] | None = None


class Comment(DeedOnIssue, kw_only=True):
    """Something is said; who is named with an @ is mentioned."""

    body: str


class Review(DeedOnIssue, kw_only=True):
    """A review is submitted."""

    event: actions.Verdict = "COMMENT"
    body: str = ""
    comments: list[Remark] = []


class Push(DeedOnIssue, kw_only=True):
    """A commit is pushed to the branch of a pull request."""

    sha: str | None = None


class Close(DeedOnIssue, kw_only=True):
    """An issue or a pull request is closed, the latter perhaps by a merge."""

    merge: bool = False


class AddHook(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Somebody registers a webhook, for all repositories unless one is named."""

    url: str
    secret: str = ""
    repository: str | None = None
    events: tuple[str, ...] = ("*",)
    content_type: str = "json"


class Secondary(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The next `times` requests with a method ask too much at once."""

    times: int = 1
    retry_after: int | None = 60
    status: int = 403
    method: str = "*"


class Limits(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How much may be asked still, until when, and how often; what is not named stays."""

    limit: int | None = None
    remaining: int | None = None
    reset_seconds: int | None = None
    status: int | None = None
    poll_interval: int | None = None
    secondary: Secondary | None = None


_D = TypeVar("_D", bound=Deed)
_Handler = Callable[[web.Request], Awaitable[web.Response]]


def _add_repository(happening: Happening, deed: AddRepository) -> dict[str, Any]:
    actions.add_repository(happening, deed.repository, private=deed.private, default_branch=deed.default_branch)
    return happening.bodies.repository(deed.repository)


def _open_pull_request(happening: Happening, deed: OpenPullRequest) -> dict[str, Any]:
    pull = actions.open_pull_request(
        happening,
        deed.repository,
        title=deed.title,
        body=deed.body,
        head=deed.head,
        base=deed.base,
        draft=deed.draft,
        sha=deed.sha,
        files=[msgspec.structs.asdict(file) for file in deed.files],
    )
    actions.request_review(happening, pull, deed.reviewers)
    return happening.bodies.whole_pull_request(pull)


def _open_issue(happening: Happening, deed: OpenIssue) -> dict[str, Any]:
    issue = actions.open_issue(
        happening, deed.repository, title=deed.title, body=deed.body, labels=deed.labels, assignees=deed.assignees
    )
    return happening.bodies.issue(issue)


def _request_review(happening: Happening, deed: RequestReview) -> dict[str, Any]:
    pull = find(happening.book.state, deed.repository, deed.number, pull=True)
    us = [happening.book.state["login"]]
    actions.request_review(happening, pull, us if deed.reviewers is None else deed.reviewers)
    return happening.bodies.whole_pull_request(pull)


def _assign(happening: Happening, deed: Assign) -> dict[str, Any]:
    issue = find(happening.book.state, deed.repository, deed.number)
    us = [happening.book.state["login"]]
    actions.assign(happening, issue, us if deed.assignees is None else deed.assignees)
    return happening.bodies.issue(issue)


def _comment(happening: Happening, deed: Comment) -> dict[str, Any]:
    issue = find(happening.book.state, deed.repository, deed.number)
    return happening.bodies.comment(actions.comment(happening, issue, deed.body))


def _review(happening: Happening, deed: Review) -> dict[str, Any]:
    pull = find(happening.book.state, deed.repository, deed.number, pull=True)
    remarks = [msgspec.structs.asdict(each) for each in deed.comments]
    review = actions.draft_review(happening, pull, body=deed.body, commit_id=None, remarks=remarks)
    actions.submit_review(happening, pull, review, deed.event)
    return happening.bodies.review(review)


def _push(happening: Happening, deed: Push) -> dict[str, Any]:
    pull = find(happening.book.state, deed.repository, deed.number, pull=True)
    actions.push(happening, pull, deed.sha)
    return happening.bodies.whole_pull_request(pull)


def _close(happening: Happening, deed: Close) -> dict[str, Any]:
    issue = find(happening.book.state, deed.repository, deed.number)
    actions.close(happening, issue, merge=deed.merge)
    return happening.bodies.issue(issue)


def _reopen(happening: Happening, deed: DeedOnIssue) -> dict[str, Any]:
    issue = find(happening.book.state, deed.repository, deed.number)
    actions.reopen(happening, issue)
    return happening.bodies.issue(issue)


def _handler(kind: type[_D], do: Callable[[Happening, _D], dict[str, Any]]) -> _Handler:
    async def handle(request: web.Request) -> web.Response:
        deed = await body_of(request, kind)
        at, base = stamp(deed.at), base_of(request)
        happening = Happening(application=request.app, base=base, by=deed.by, at=at, reason=deed.reason)
        with happening.book.change():
            if kind is not AddRepository:
                actions.add_repository(happening, deed.repository)
            done = do(happening, deed)
        return web.json_response(done, status=201)

    return handle


async def _add_hook(request: web.Request) -> web.Response:
    asked = await body_of(request, AddHook)
    happening = Happening(application=request.app, base=base_of(request), by="octocat", at=stamp())
    with happening.book.change():
        if asked.repository:
            actions.add_repository(happening, asked.repository)
        hook = add_hook(happening, **msgspec.to_builtins(asked))
    return web.json_response(happening.bodies.hook(hook), status=201)


async def _set_limits(request: web.Request) -> web.Response:
    asked = await body_of(request, Limits)
    limits_of(request.app[BOOK])
    with request.app[BOOK].change() as state:
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
    web.post(f"{CONTROL}/comment", _handler(Comment, _comment)),
    web.post(f"{CONTROL}/review", _handler(Review, _review)),
    web.post(f"{CONTROL}/push", _handler(Push, _push)),
    web.post(f"{CONTROL}/close", _handler(Close, _close)),
    web.post(f"{CONTROL}/reopen", _handler(DeedOnIssue, _reopen)),
    web.post(f"{CONTROL}/hook", _add_hook),
    web.post(f"{CONTROL}/limits", _set_limits),
]
