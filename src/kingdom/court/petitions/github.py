"""Petitions performed on GitHub: comments, reviews and pull requests."""

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, timedelta
from typing import Any

from kingdom.bus.effects.effect import (
    Absent,
    Acked,
    Attempt,
    CallResult,
    Present,
    ReconcileResult,
    Rejected,
    Throttled,
    Unclear,
)
from kingdom.court.outside import PAUSE, Reply, github_headers, next_page, pause_of
from kingdom.court.petitions.api import LONGEST_CALL, REASON_MAX, Api, answer_of, must_be
from kingdom.court.petitions.bodies import GithubComment, GithubPullRequest, GithubReview, stored_body
from kingdom.court.petitions.effects import SETTLES_AFTER, PetitionEffect, outgoing, since_of
from kingdom.court.sentinel.untrusted import clean
from kingdom.errors import Transient

_NAME = "GitHub"
_PAGE = 100
_PAGES_MAX = 100
_FORBIDDEN, _NOT_FOUND, _INVALID, _TOO_MANY = 403, 404, 422, 429


class GithubApi(Api):
    """GitHub's REST interface for the account of a token."""

    def __init__(self, url: str, token: str, longest_call: timedelta = LONGEST_CALL) -> None:
        super().__init__(url, github_headers(token), longest_call)

    async def every(self, path: str, **parameters: str | int) -> AsyncIterator[dict[str, Any]]:
        """Yield everything of a list, page by page."""
        reply = await self.ask(path, per_page=_PAGE, **parameters)
        for _ in range(_PAGES_MAX):
            for item in must_be(reply, list, _NAME):
                yield item
            following = next_page(reply, self.url)
            if not following:
                return
            reply = await self.ask(following)
        raise Transient(f"{_NAME} lists more under {path} than can be looked through")


class GithubPetitions(PetitionEffect):
    """Performs what goes to GitHub; an invisible mark at the end of each text tells whether it is there."""

    def __init__(self, api: GithubApi, settles_after: timedelta = SETTLES_AFTER) -> None:
        super().__init__(_NAME, api, settles_after)
        self._github = api

    async def send(self, attempt: Attempt) -> CallResult:
        """Write the comment or the review, or open the pull request."""
        document = attempt.request["body"]
        match attempt.request["kind"]:
            case "github.comment":
                comment = stored_body(GithubComment, document)
                path = f"/repos/{comment.repo}/issues/{comment.number}/comments"
                return _answer(await self._api.send(path, {"body": marked(comment.body, attempt)}))
            case "github.review":
                review = stored_body(GithubReview, document)
                path = f"/repos/{review.repo}/pulls/{review.number}/reviews"
                said = {"event": review.event, "body": marked(review.body, attempt)}
                return _answer(await self._api.send(path, said))
            case "github.pull_request":
                return await self._open(stored_body(GithubPullRequest, document), attempt)
            case kind:
                return Rejected(f"nobody here knows how to perform {kind}")

    async def reconcile(self, attempt: Attempt) -> ReconcileResult:
        """Look for what any attempt of the same petition left behind."""
        document, since = attempt.request["body"], since_of(attempt).astimezone(UTC)
        match attempt.request["kind"]:
            case "github.comment":
                comment = stored_body(GithubComment, document)
                path = f"/repos/{comment.repo}/issues/{comment.number}/comments"
                return await self._look(attempt, path, since=f"{since:%Y-%m-%dT%H:%M:%SZ}")
            case "github.review":
                review = stored_body(GithubReview, document)
                return await self._look(attempt, f"/repos/{review.repo}/pulls/{review.number}/reviews")
            case "github.pull_request":
                pull = await self._existing(stored_body(GithubPullRequest, document), attempt)
                return Present(_response(pull)) if pull else Absent()
            case kind:
                return Unclear(f"nobody here knows how to look for {kind}")

    async def _look(self, attempt: Attempt, path: str, **parameters: str) -> ReconcileResult:
        async for item in self._github.every(path, **parameters):
            if is_marked(item.get("body"), attempt):
                return Present(_response(item))
        return Absent()

    async def _open(self, wanted: GithubPullRequest, attempt: Attempt) -> CallResult:
        """Give the commit its branch and open the pull request; either may be there already."""
        if wrong := await self._branch(wanted):
            return wrong
        said = {
            "title": outgoing(wanted.title, attempt),
            "body": marked(wanted.body, attempt),
            "head": wanted.head,
            "base": wanted.base,
        }
        reply = await self._api.send(f"/repos/{wanted.repo}/pulls", said)
        if reply.status == _INVALID and (pull := await self._existing(wanted, attempt)):
            return Acked(_response(pull))
        return _answer(reply)

    async def _branch(self, wanted: GithubPullRequest) -> CallResult | None:
        """Have the branch at its commit; returns why that cannot be."""
        said = {"ref": f"refs/heads/{wanted.head}", "sha": wanted.head_sha}
        reply = await self._api.send(f"/repos/{wanted.repo}/git/refs", said)
        if reply.ok:
            return None
        if reply.status != _INVALID:
            return _answer(reply)
        there = await self._api.ask(f"/repos/{wanted.repo}/git/ref/heads/{wanted.head}")
        if there.status == _NOT_FOUND:
            return Rejected(
                f"GitHub has no commit {wanted.head_sha[:12]} for the branch {wanted.head} ({_words(reply)}):"
                f" let the checkpoints of this Git be pushed to {wanted.repo}"
            )
        if not there.ok:
            return _answer(there)
        commit = must_be(there, dict, _NAME)["object"]["sha"]
        if commit == wanted.head_sha:
            return None
        return Rejected(f"the branch {wanted.head} is at {commit[:12]} already, and not at {wanted.head_sha[:12]}")

    async def _existing(self, wanted: GithubPullRequest, attempt: Attempt) -> dict[str, Any] | None:
        """Return the pull request of a branch: ours in any state, or an open one of somebody else."""
        owner = wanted.repo.partition("/")[0]
        about = {"head": f"{owner}:{wanted.head}", "base": wanted.base, "state": "all"}
        async for pull in self._github.every(f"/repos/{wanted.repo}/pulls", **about):
            if is_marked(pull.get("body"), attempt) or pull["state"] == "open":
                return pull
        return None


def marked(text: str, attempt: Attempt) -> str:
    """Return a text as it leaves the house, with a mark that readers do not see."""
    mark = f"<!-- kingdom:{attempt.identifier} {attempt.request['mark']} -->"
    return f"{outgoing(text, attempt).rstrip()}\n\n{mark}".lstrip()


def is_marked(text: Any, attempt: Attempt) -> bool:
    """Tell whether any attempt of the same petition wrote a text."""
    return isinstance(text, str) and text.rstrip().endswith(f" {attempt.request['mark']} -->")


def _response(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: item[key] for name, key in (("url", "html_url"), ("id", "id"), ("number", "number")) if key in item}


def _answer(reply: Reply) -> CallResult:
    """Return what a reply of GitHub means; its limits come as 403 too."""
    words = _words(reply)
    if reply.status in (_FORBIDDEN, _TOO_MANY) and (wait := _wait(reply, words)):
        return Throttled(wait, f"{_NAME} answered {reply.status}: {words}")
    return answer_of(reply, _NAME, words, _response(reply.body) if isinstance(reply.body, dict) else {})


def _wait(reply: Reply, words: str) -> timedelta | None:
    """Return how long GitHub wants to be left alone; None where it simply forbids."""
    limited = reply.status == _TOO_MANY or "rate limit" in words.lower()
    return pause_of(reply.headers) or (PAUSE if limited else None)


def _words(reply: Reply) -> str:
    """Return what GitHub says of an error, with its details."""
    if not isinstance(reply.body, dict):
        return ""
    details = reply.body.get("errors")
    parts = [reply.body.get("message"), *(details if isinstance(details, list) else [])]
    return clean(": ".join(_detail(part) for part in parts if part), REASON_MAX)


def _detail(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    words = part.get("message") or " ".join(str(part[name]) for name in ("resource", "field", "code") if name in part)
    return str(words)
