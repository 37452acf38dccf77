"""Perform petitions on GitHub: comments, summaries, reviews and pull requests."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import UTC, timedelta
from typing import Any

import msgspec

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
from kingdom.court.petitions.bodies import (
    GithubComment,
    GithubPullRequest,
    GithubReview,
    GithubSummary,
    LineComment,
    stored_body,
)
from kingdom.court.petitions.effects import VISIBLE_AFTER, PetitionEffect, earliest_time, without_forbidden_commands
from kingdom.court.petitions.github_access import GithubAccess
from kingdom.court.petitions.http_api import LONGEST_CALL, REASON_MAX, HttpApi, call_result, require_body
from kingdom.court.petitions.review_lines import diff_lines, split_comments, text_with_comments
from kingdom.court.remote_http import PAUSE, HttpReply, bearer, github_headers, next_page, requested_pause
from kingdom.court.sentinel.untrusted import clean_text
from kingdom.errors import Transient

# What the last line of a summary begins with.
SUMMARY_MARK = "<!-- kingdom:summary -->"
_NAME = "GitHub"
_PAGE = 100
_PAGES_MAX = 100
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _INVALID, _TOO_MANY = 401, 403, 404, 422, 429


class GithubApi(HttpApi):
    """GitHub's REST API. The authorization can differ from request to request."""

    def __init__(self, url: str, access: GithubAccess, longest_call: timedelta = LONGEST_CALL) -> None:
        super().__init__(url, github_headers(), longest_call)
        self._access = access

    async def every(self, path: str, **parameters: str | int) -> AsyncIterator[dict[str, Any]]:
        """Yield every item of a list, page by page."""
        reply = await self.ask(path, per_page=_PAGE, **parameters)
        for _ in range(_PAGES_MAX):
            for item in require_body(reply, list, _NAME):
                yield item
            following = next_page(reply, self.url)
            if not following:
                return
            reply = await self.ask(following)
        raise Transient(f"the list {path} of {_NAME} is too long to search")

    async def close(self) -> None:
        """Close all connections."""
        await self._access.close()
        await super().close()

    async def _request(self, method: str, path: str, **options: Any) -> HttpReply:
        # The limit of a call includes the request for its token.
        async with asyncio.timeout(self.longest_call.total_seconds()):
            token = await self._access.token_for(method, path.removeprefix(self.url))
            reply = await super()._request(method, path, headers=bearer(token), **options)
            if reply.status != _UNAUTHORIZED or not self._access.replaces(token):
                return reply
            # GitHub did nothing with a rejected token, so the request can be sent again.
            token = await self._access.token_for(method, path.removeprefix(self.url))
            return await super()._request(method, path, headers=bearer(token), **options)


class GithubPetitions(PetitionEffect):
    """Performs petitions on GitHub. The mark of a petition is an HTML comment at the end of each text."""

    def __init__(self, api: GithubApi, logins: Collection[str], visible_after: timedelta = VISIBLE_AFTER) -> None:
        super().__init__(_NAME, api, visible_after)
        self._github = api
        self._our_logins = frozenset(login.lower() for login in logins)

    async def send(self, attempt: Attempt) -> CallResult:
        """Write the comment or the review, or open the pull request."""
        document = attempt.request["body"]
        match attempt.request["kind"]:
            case "github.comment":
                comment = stored_body(GithubComment, document)
                path = f"/repos/{comment.repo}/issues/{comment.number}/comments"
                return _call_result(await self._api.send(path, {"body": marked(comment.body, attempt)}))
            case "github.summary":
                return await self._write_summary(stored_body(GithubSummary, document), attempt)
            case "github.review":
                return await self._submit_review(stored_body(GithubReview, document), attempt)
            case "github.pull_request":
                return await self._open_pull_request(stored_body(GithubPullRequest, document), attempt)
            case kind:
                return Rejected(f"this version cannot perform {kind}")

    async def reconcile(self, attempt: Attempt) -> ReconcileResult:
        """Search for the result of this attempt or an earlier one."""
        document, since = attempt.request["body"], earliest_time(attempt).astimezone(UTC)
        match attempt.request["kind"]:
            case "github.comment" | "github.summary":
                comment = stored_body(GithubComment, document)
                path = f"/repos/{comment.repo}/issues/{comment.number}/comments"
                return await self._find_marked(attempt, path, since=f"{since:%Y-%m-%dT%H:%M:%SZ}")
            case "github.review":
                review = stored_body(GithubReview, document)
                return await self._find_marked(attempt, f"/repos/{review.repo}/pulls/{review.number}/reviews")
            case "github.pull_request":
                pull = await self._find_pull_request(stored_body(GithubPullRequest, document), attempt)
                return Present(_response(pull)) if pull else Absent()
            case kind:
                return Unclear(f"this version cannot search for {kind}")

    async def _find_marked(self, attempt: Attempt, path: str, **parameters: str) -> ReconcileResult:
        async for item in self._github.every(path, **parameters):
            if is_marked(item.get("body"), attempt):
                return Present(_response(item))
        return Absent()

    async def _write_summary(self, summary: GithubSummary, attempt: Attempt) -> CallResult:
        """Edit our summary, or write it if there is none yet."""
        issues = f"/repos/{summary.repo}/issues"
        text = marked(summary.body, attempt, SUMMARY_MARK)
        async for comment in self._github.every(f"{issues}/{summary.number}/comments"):
            if self._is_ours(comment) and is_summary(comment.get("body")):
                path = f"{issues}/comments/{comment['id']}"
                return _call_result(await self._api.change(path, {"body": text}))
        return _call_result(await self._api.send(f"{issues}/{summary.number}/comments", {"body": text}))

    def _is_ours(self, comment: Mapping[str, Any]) -> bool:
        author = comment.get("user")
        return isinstance(author, dict) and str(author.get("login")).lower() in self._our_logins

    async def _submit_review(self, review: GithubReview, attempt: Attempt) -> CallResult:
        """Submit a review in one call. Line comments outside of the diff move into its text."""
        pull = f"/repos/{review.repo}/pulls/{review.number}"
        comments = review.comments or ()
        files = [file async for file in self._github.every(f"{pull}/files")] if comments else []
        inside, outside = split_comments(comments, diff_lines(files))
        reply = await self._send_review(pull, review, attempt, inside, outside)
        if reply.status == _INVALID and inside:
            # A push may have changed the diff after it was read.
            reply = await self._send_review(pull, review, attempt, [], comments)
        return _call_result(reply)

    async def _send_review(
        self,
        pull: str,
        review: GithubReview,
        attempt: Attempt,
        inside: Sequence[LineComment],
        outside: Sequence[LineComment],
    ) -> HttpReply:
        comments = [
            {**msgspec.to_builtins(each), "body": without_forbidden_commands(each.body, attempt)} for each in inside
        ]
        text = marked(text_with_comments(review.body, outside), attempt)
        request_body = {"event": review.event, "body": text, **({"comments": comments} if comments else {})}
        return await self._api.send(f"{pull}/reviews", request_body)

    async def _open_pull_request(self, wanted: GithubPullRequest, attempt: Attempt) -> CallResult:
        """Create the branch and the pull request, unless they exist already."""
        if failure := await self._create_branch(wanted):
            return failure
        request_body = {
            "title": without_forbidden_commands(wanted.title, attempt),
            "body": marked(wanted.body, attempt),
            "head": wanted.head,
            "base": wanted.base,
        }
        reply = await self._api.send(f"/repos/{wanted.repo}/pulls", request_body)
        if reply.status == _INVALID and (pull := await self._find_pull_request(wanted, attempt)):
            return Acked(_response(pull))
        return _call_result(reply)

    async def _create_branch(self, wanted: GithubPullRequest) -> CallResult | None:
        """Create the branch unless it exists at its commit. Return the failure, or None."""
        request_body = {"ref": f"refs/heads/{wanted.head}", "sha": wanted.head_sha}
        reply = await self._api.send(f"/repos/{wanted.repo}/git/refs", request_body)
        if reply.ok:
            return None
        if reply.status != _INVALID:
            return _call_result(reply)
        existing = await self._api.ask(f"/repos/{wanted.repo}/git/ref/heads/{wanted.head}")
        if existing.status == _NOT_FOUND:
            return Rejected(
                f"GitHub has no commit {wanted.head_sha[:12]} for the branch {wanted.head} ({_error_message(reply)}):"
                f" make {wanted.repo} the checkpoint remote of the repository"
            )
        if not existing.ok:
            return _call_result(existing)
        commit = require_body(existing, dict, _NAME)["object"]["sha"]
        if commit == wanted.head_sha:
            return None
        return Rejected(f"the branch {wanted.head} already exists at {commit[:12]}, not at {wanted.head_sha[:12]}")

    async def _find_pull_request(self, wanted: GithubPullRequest, attempt: Attempt) -> dict[str, Any] | None:
        """Return the pull request of a branch: the one with our mark, or any open pull request."""
        owner = wanted.repo.partition("/")[0]
        about = {"head": f"{owner}:{wanted.head}", "base": wanted.base, "state": "all"}
        async for pull in self._github.every(f"/repos/{wanted.repo}/pulls", **about):
            if is_marked(pull.get("body"), attempt) or pull["state"] == "open":
                return pull
        return None


def marked(text: str, attempt: Attempt, first_mark: str = "") -> str:
    """Return a text in the form in which it is sent: without forbidden commands, and with the mark."""
    mark = f"{first_mark}<!-- kingdom:{attempt.identifier} {attempt.request['mark']} -->"
    return f"{without_forbidden_commands(text, attempt).rstrip()}\n\n{mark}".lstrip()


def is_summary(text: Any) -> bool:
    """Return whether a text of ours is a summary. No agent can imitate it, since its mark is in our last line."""
    return isinstance(text, str) and text.rstrip().rpartition("\n")[2].startswith(SUMMARY_MARK)


def is_marked(text: Any, attempt: Attempt) -> bool:
    """Return whether an attempt of the same petition wrote this text."""
    return isinstance(text, str) and text.rstrip().endswith(f" {attempt.request['mark']} -->")


def _response(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: item[key] for name, key in (("url", "html_url"), ("id", "id"), ("number", "number")) if key in item}


def _call_result(reply: HttpReply) -> CallResult:
    """Return the result of a call to GitHub. GitHub also uses status 403 for rate limits."""
    message = _error_message(reply)
    if reply.status in (_FORBIDDEN, _TOO_MANY) and (pause := _rate_limit_pause(reply, message)):
        return Throttled(pause, f"{_NAME} answered {reply.status}: {message}")
    return call_result(reply, _NAME, message, _response(reply.body) if isinstance(reply.body, dict) else {})


def _rate_limit_pause(reply: HttpReply, message: str) -> timedelta | None:
    """Return how long to wait at a rate limit, or None if the request is forbidden."""
    limited = reply.status == _TOO_MANY or "rate limit" in message.lower()
    return requested_pause(reply.headers) or (PAUSE if limited else None)


def _error_message(reply: HttpReply) -> str:
    """Return the error message of GitHub with its details."""
    if not isinstance(reply.body, dict):
        return ""
    details = reply.body.get("errors")
    parts = [reply.body.get("message"), *(details if isinstance(details, list) else [])]
    return clean_text(": ".join(_detail(part) for part in parts if part), REASON_MAX)


def _detail(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    text = part.get("message") or " ".join(str(part[name]) for name in ("resource", "field", "code") if name in part)
    return str(text)
