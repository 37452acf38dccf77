"""Actions of users. Each action changes the state, notifies our user if necessary, and queues webhooks."""

import hashlib
import re
from typing import Any, Literal

from kingdom.standins.github.action_context import ActionContext
from kingdom.standins.github.api import GithubRefusal, invalid
from kingdom.standins.github.webhooks import queue_webhooks
from kingdom.standins.state_file import StateFile

ReviewEvent = Literal["APPROVE", "REQUEST_CHANGES", "COMMENT"]
_REVIEW_STATES = {"APPROVE": "APPROVED", "REQUEST_CHANGES": "CHANGES_REQUESTED", "COMMENT": "COMMENTED"}


def add_repository(context: ActionContext, name: str, *, private: bool = False, default_branch: str = "main") -> None:
    """Create a repository unless it exists."""
    if name not in context.state_file.state["repositories"]:
        stored = {"id": context.state_file.next_number("id"), "private": private, "default_branch": default_branch}
        context.state_file.state["repositories"][name] = stored | {"created_at": context.at}
        context.state_file.state["issues"][name] = {}


def open_issue(
    context: ActionContext, repository: str, *, title: str, body: str | None, labels: list[str], assignees: list[str]
) -> dict[str, Any]:
    """Open an issue."""
    issue = _add_issue(context, repository, title=title, body=body, labels=labels, pull=None)
    _notify_us(context, issue, body)
    _queue_webhook(context, issue, "opened")
    if assignees:
        assign(context, issue, assignees)
    return issue


def open_pull_request(
    context: ActionContext,
    repository: str,
    *,
    title: str,
    body: str | None,
    head: str,
    base: str,
    draft: bool,
    sha: str | None = None,
    files: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Open a pull request. Two branches can have only one open pull request."""
    first, _, second = head.partition(":")
    owner, ref = (first, second) if second else (repository.partition("/")[0], first)
    for other in context.state_file.state["issues"][repository].values():
        pull = other["pull"]
        if pull and other["state"] == "open" and _branches(pull) == (owner, ref, base):
            message = f"A pull request already exists for {owner}:{ref}."
            raise invalid("PullRequest", "custom", message=message)
    if (owner, ref) == (repository.partition("/")[0], base):
        raise invalid("PullRequest", "custom", message=f"No commits between {base} and {ref}")
    pull = {
        "head": {"owner": owner, "ref": ref, "sha": sha or _new_sha(context.state_file)},
        "base": {"owner": repository.partition("/")[0], "ref": base, "sha": _new_sha(context.state_file)},
        "draft": draft,
        "files": files or [],
        "commits": 1,
        "requested_reviewers": [],
        "merged_at": None,
        "merged_by": None,
        "merge_commit_sha": None,
    }
    stored = _add_issue(context, repository, title=title, body=body, labels=[], pull=pull)
    _notify_us(context, stored, body)
    _queue_webhook(context, stored, "opened")
    return stored


def request_review(context: ActionContext, pull: dict[str, Any], reviewers: list[str]) -> None:
    """Request reviews. A repeated request notifies again."""
    if pull["user"] in reviewers:
        raise GithubRefusal(422, "Review cannot be requested from pull request author.")
    requested = pull["pull"]["requested_reviewers"]
    for reviewer in reviewers:
        requested.extend([reviewer] if reviewer not in requested else [])
        _touch(context, pull)
        if reviewer == context.state_file.state["login"]:
            _notify_us(context, pull, because="review_requested")
        _queue_webhook(context, pull, "review_requested", requested_reviewer=context.bodies.user(reviewer))


def withdraw_review_request(context: ActionContext, pull: dict[str, Any], reviewers: list[str]) -> None:
    """Withdraw review requests."""
    requested = pull["pull"]["requested_reviewers"]
    for reviewer in [each for each in reviewers if each in requested]:
        requested.remove(reviewer)
        _touch(context, pull)
        _queue_webhook(context, pull, "review_request_removed", requested_reviewer=context.bodies.user(reviewer))


def comment(context: ActionContext, issue: dict[str, Any], body: str) -> dict[str, Any]:
    """Comment on an issue or a pull request."""
    stored = {
        **_new_reference(context, issue),
        "body": body,
        "created_at": context.at,
        "updated_at": context.at,
    }
    context.state_file.state["comments"].append(stored)
    _touch(context, issue)
    _notify_us(context, issue, body, latest=f"/repos/{issue['repository']}/issues/comments/{stored['id']}")
    bodies = context.bodies
    payload = {"issue": bodies.issue(issue), "comment": bodies.comment(stored)}
    queue_webhooks(context, "issue_comment", "created", issue["repository"], payload)
    return stored


def draft_review(
    context: ActionContext,
    pull: dict[str, Any],
    *,
    body: str,
    commit_id: str | None,
    line_comments: list[dict[str, Any]],
) -> dict[str, Any]:
    """Create a pending review, which only its author can see."""
    commit = commit_id or pull["pull"]["head"]["sha"]
    stored = {
        **_new_reference(context, pull),
        "body": body,
        "commit_id": commit,
        "state": "PENDING",
        "submitted_at": None,
    }
    context.state_file.state["reviews"].append(stored)
    for line_comment in line_comments:
        details = {"review_id": stored["id"], "commit_id": commit, "created_at": context.at}
        context.state_file.state["review_comments"].append({**_new_reference(context, pull), **details, **line_comment})
    return stored


def submit_review(context: ActionContext, pull: dict[str, Any], review: dict[str, Any], verdict: ReviewEvent) -> None:
    """Submit a review with its verdict, and remove its author from the requested reviewers."""
    if review["user"] == pull["user"] and verdict != "COMMENT":
        action = "approve" if verdict == "APPROVE" else "request changes on"
        raise GithubRefusal(422, "Unprocessable Entity", f"Can not {action} your own pull request")
    bodies = context.bodies
    line_comments = [each for each in bodies.parts_of(pull, "review_comments") if each["review_id"] == review["id"]]
    if verdict != "APPROVE" and not review["body"] and not line_comments:
        raise GithubRefusal(422, "Unprocessable Entity", "Body can't be blank")
    review.update(state=_REVIEW_STATES[verdict], submitted_at=context.at)
    requested = pull["pull"]["requested_reviewers"]
    requested[:] = [each for each in requested if each != review["user"]]
    _touch(context, pull)
    _notify_us(context, pull, review["body"], *(each["body"] for each in line_comments), latest=None)
    # GitHub writes the state of a review in lower case in webhooks.
    review_body = {**bodies.review(review), "state": review["state"].lower()}
    payload = {"review": review_body, "pull_request": bodies.pull_request(pull)}
    queue_webhooks(context, "pull_request_review", "submitted", pull["repository"], payload)
    for line_comment in line_comments:
        payload = {"comment": bodies.review_comment(line_comment), "pull_request": bodies.pull_request(pull)}
        queue_webhooks(context, "pull_request_review_comment", "created", pull["repository"], payload)


def push(context: ActionContext, pull: dict[str, Any], sha: str | None) -> None:
    """Push a commit to the branch of a pull request."""
    head = pull["pull"]["head"]
    before, head["sha"] = head["sha"], sha or _new_sha(context.state_file)
    pull["pull"]["commits"] += 1
    _touch(context, pull)
    _notify_us(context, pull)
    _queue_webhook(context, pull, "synchronize", before=before, after=head["sha"])


def close(context: ActionContext, issue: dict[str, Any], *, merge: bool = False) -> None:
    """Close an issue or a pull request; `merge` merges a pull request."""
    issue.update(state="closed", closed_at=context.at, closed_by=context.by)
    if not issue["pull"]:
        issue["state_reason"] = "completed"
    elif merge:
        sha = _new_sha(context.state_file)
        issue["pull"].update(merged_at=context.at, merged_by=context.by, merge_commit_sha=sha)
    _touch(context, issue)
    _notify_us(context, issue, part="state_change")
    _queue_webhook(context, issue, "closed")


def reopen(context: ActionContext, issue: dict[str, Any]) -> None:
    """Reopen an issue or a pull request."""
    issue.update(state="open", closed_at=None, closed_by=None)
    issue["state_reason"] = None if issue["pull"] else "reopened"
    _touch(context, issue)
    _notify_us(context, issue, part="state_change")
    _queue_webhook(context, issue, "reopened")


def edit(context: ActionContext, issue: dict[str, Any], changed: dict[str, Any]) -> None:
    """Change the title or text of an issue or a pull request."""
    before = {name: {"from": issue[name]} for name in changed}
    issue.update(changed)
    _touch(context, issue)
    _queue_webhook(context, issue, "edited", changes=before)


def assign(context: ActionContext, issue: dict[str, Any], assignees: list[str]) -> None:
    """Assign users. A repeated assignment notifies again."""
    for assignee in assignees:
        issue["assignees"].extend([assignee] if assignee not in issue["assignees"] else [])
        _touch(context, issue)
        if assignee == context.state_file.state["login"]:
            _notify_us(context, issue, because="assign")
        _queue_webhook(context, issue, "assigned", assignee=context.bodies.user(assignee))


def label(context: ActionContext, issue: dict[str, Any], names: list[str]) -> None:
    """Add labels to an issue or a pull request."""
    for name in [each for each in names if each not in issue["labels"]]:
        issue["labels"].append(name)
        _touch(context, issue)
        _queue_webhook(context, issue, "labeled", label=context.bodies.label(issue["repository"], name))


def _add_issue(
    context: ActionContext,
    repository: str,
    *,
    title: str,
    body: str | None,
    labels: list[str],
    pull: dict[str, Any] | None,
) -> dict[str, Any]:
    number = context.state_file.next_number(f"issues of {repository}")
    stored = {
        "id": context.state_file.next_number("id"),
        "repository": repository,
        "number": number,
        "title": title,
        "body": body,
        "user": context.by,
        "state": "open",
        "state_reason": None,
        "created_at": context.at,
        "updated_at": context.at,
        "closed_at": None,
        "closed_by": None,
        "labels": list(labels),
        "assignees": [],
        "pull": pull,
        # The reason of notifications to our user if an action has no other reason.
        "part": "author" if context.by == context.state_file.state["login"] else None,
    }
    context.state_file.state["issues"][repository][str(number)] = stored
    return stored


def _new_reference(context: ActionContext, issue: dict[str, Any]) -> dict[str, Any]:
    """Return a new id, the issue, and the author of a comment or review."""
    place = {"repository": issue["repository"], "number": issue["number"]}
    return {"id": context.state_file.next_number("id"), **place, "user": context.by}


def _touch(context: ActionContext, issue: dict[str, Any]) -> None:
    issue["updated_at"] = context.at


def _notify_us(
    context: ActionContext,
    issue: dict[str, Any],
    *texts: str | None,
    because: str | None = None,
    part: str = "comment",
    latest: str | None = "",
) -> None:
    """Update the notification thread of our user, unless our user acted or has no reason to be notified.

    `because` is the reason of this notification. If our user acted, `part` is the reason of later notifications. An
    empty `latest` keeps the link to the latest comment.
    """
    state = context.state_file.state
    if context.by == state["login"]:
        issue["part"] = issue["part"] or part
        return
    place = f"{issue['repository']}#{issue['number']}"
    thread = state["threads"].get(place)
    mention = re.compile(rf"(?<![\w/])@{re.escape(state['login'])}(?![\w-])", re.IGNORECASE)
    mentioned = any(mention.search(each or "") for each in texts)
    reason = context.reason or because or ("mention" if mentioned else None)
    reason = reason or (thread and thread["reason"]) or issue["part"]
    if reason is None:
        return
    if thread is None:
        kind = "pulls" if issue["pull"] else "issues"
        first = f"/repos/{issue['repository']}/{kind}/{issue['number']}"
        thread = {"id": str(context.state_file.next_number("thread")), "last_read_at": None, "latest_comment": first}
        state["threads"][place] = thread | {"repository": issue["repository"], "number": issue["number"]}
        thread = state["threads"][place]
    thread.update(unread=True, reason=reason, updated_at=context.at)
    if latest != "":
        thread["latest_comment"] = latest
    state["threads_changed_at"] = max(state["threads_changed_at"] or "", context.at)


def _queue_webhook(context: ActionContext, issue: dict[str, Any], action: str, **more: Any) -> None:
    bodies = context.bodies
    if issue["pull"]:
        payload = {"number": issue["number"], "pull_request": bodies.whole_pull_request(issue), **more}
        queue_webhooks(context, "pull_request", action, issue["repository"], payload)
    else:
        queue_webhooks(context, "issues", action, issue["repository"], {"issue": bodies.issue(issue), **more})


def _branches(pull: dict[str, Any]) -> tuple[str, str, str]:
    return pull["head"]["owner"], pull["head"]["ref"], pull["base"]["ref"]


def _new_sha(state_file: StateFile) -> str:
    return hashlib.sha256(f"commit {state_file.next_number('commit')}".encode()).hexdigest()[:40]
