"""Perform petitions on GitHub, one function for each kind."""

from collections.abc import Collection, Sequence
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
    Unclear,
)
from kingdom.court.petitions.bodies import (
    GithubAutoMerge,
    GithubComment,
    GithubIssue,
    GithubLabel,
    GithubPullRequest,
    GithubPush,
    GithubReply,
    GithubReview,
    GithubSummary,
    LineComment,
    stored_body,
)
from kingdom.court.petitions.effects import (
    LONGEST_SEND,
    VISIBLE_AFTER,
    PetitionEffect,
    earliest_time,
    without_forbidden_commands,
)
from kingdom.court.petitions.github.api import (
    NAME,
    GithubApi,
    GraphqlFailed,
    error_message,
    github_result,
    response_of,
)
from kingdom.court.petitions.github.auto_merge import find_auto_merge, switch_on_auto_merge
from kingdom.court.petitions.github.labels import change_labels, find_labels
from kingdom.court.petitions.github.marks import SUMMARY_MARK, is_by, is_marked, is_summary, marked
from kingdom.court.petitions.github.pushes import find_push, push_commits
from kingdom.court.petitions.github.replies import find_reply, send_reply
from kingdom.court.petitions.github.review_lines import diff_lines, split_comments, text_with_comments
from kingdom.court.petitions.http_api import require_body
from kingdom.court.remote_http import HttpReply

_NOT_FOUND, _INVALID = 404, 422


class GithubPetitions(PetitionEffect):
    """Performs petitions on GitHub. The mark of a petition is an HTML comment at the end of each text."""

    def __init__(
        self,
        api: GithubApi,
        logins: Collection[str],
        visible_after: timedelta = VISIBLE_AFTER,
        longest_send: timedelta = LONGEST_SEND,
    ) -> None:
        super().__init__(NAME, api, visible_after, longest_send)
        self._github = api
        self._our_logins = frozenset(login.lower() for login in logins)

    async def send(self, attempt: Attempt) -> CallResult:
        """Perform the petition with one or several requests."""
        try:
            return await self._send(attempt)
        except GraphqlFailed as failure:
            return failure.result

    async def _send(self, attempt: Attempt) -> CallResult:
        document = attempt.request["body"]
        match attempt.request["kind"]:
            case "github.comment":
                comment = stored_body(GithubComment, document)
                path = f"/repos/{comment.repo}/issues/{comment.number}/comments"
                return github_result(await self._api.send(path, {"body": marked(comment.body, attempt)}))
            case "github.summary":
                return await self._write_summary(stored_body(GithubSummary, document), attempt)
            case "github.review":
                return await self._submit_review(stored_body(GithubReview, document), attempt)
            case "github.pull_request":
                return await self._open_pull_request(stored_body(GithubPullRequest, document), attempt)
            case "github.reply":
                return await send_reply(self._github, self._our_logins, stored_body(GithubReply, document), attempt)
            case "github.push":
                return await push_commits(self._github, stored_body(GithubPush, document))
            case "github.auto_merge":
                return await switch_on_auto_merge(self._github, stored_body(GithubAutoMerge, document))
            case "github.label":
                return await change_labels(self._github, stored_body(GithubLabel, document))
            case "github.issue":
                return await self._open_issue(stored_body(GithubIssue, document), attempt)
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
                return Present(response_of(pull)) if pull else Absent()
            case "github.reply":
                return await find_reply(self._github, self._our_logins, stored_body(GithubReply, document), attempt)
            case "github.push":
                return await find_push(self._github, stored_body(GithubPush, document))
            case "github.auto_merge":
                return await find_auto_merge(self._github, stored_body(GithubAutoMerge, document))
            case "github.label":
                return await find_labels(self._github, stored_body(GithubLabel, document))
            case "github.issue":
                path = f"/repos/{stored_body(GithubIssue, document).repo}/issues"
                return await self._find_marked(attempt, path, state="all", since=f"{since:%Y-%m-%dT%H:%M:%SZ}")
            case kind:
                return Unclear(f"this version cannot search for {kind}")

    async def _find_marked(self, attempt: Attempt, path: str, **parameters: str) -> ReconcileResult:
        async for item in self._github.every(path, **parameters):
            if is_marked(item.get("body"), attempt):
                return Present(response_of(item))
        return Absent()

    async def _open_issue(self, issue: GithubIssue, attempt: Attempt) -> CallResult:
        title = without_forbidden_commands(issue.title, attempt)
        request_body = {"title": title, "body": marked(issue.body, attempt)}
        return github_result(await self._api.send(f"/repos/{issue.repo}/issues", request_body))

    async def _write_summary(self, summary: GithubSummary, attempt: Attempt) -> CallResult:
        """Edit our summary, or write it if there is none yet."""
        issues = f"/repos/{summary.repo}/issues"
        text = marked(summary.body, attempt, SUMMARY_MARK)
        async for comment in self._github.every(f"{issues}/{summary.number}/comments"):
            if is_by(self._our_logins, comment) and is_summary(comment.get("body")):
                path = f"{issues}/comments/{comment['id']}"
                return github_result(await self._api.change(path, {"body": text}))
        return github_result(await self._api.send(f"{issues}/{summary.number}/comments", {"body": text}))

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
        return github_result(reply)

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
            return Acked(response_of(pull))
        return github_result(reply)

    async def _create_branch(self, wanted: GithubPullRequest) -> CallResult | None:
        """Create the branch unless it exists at its commit. Return the failure, or None."""
        request_body = {"ref": f"refs/heads/{wanted.head}", "sha": wanted.head_sha}
        reply = await self._api.send(f"/repos/{wanted.repo}/git/refs", request_body)
        if reply.ok:
            return None
        if reply.status != _INVALID:
            return github_result(reply)
        existing = await self._api.ask(f"/repos/{wanted.repo}/git/ref/heads/{wanted.head}")
        if existing.status == _NOT_FOUND:
            return Rejected(
                f"GitHub has no commit {wanted.head_sha[:12]} for the branch {wanted.head} ({error_message(reply)}):"
                f" make {wanted.repo} the checkpoint remote of the repository"
            )
        if not existing.ok:
            return github_result(existing)
        commit = require_body(existing, dict, NAME)["object"]["sha"]
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
