"""Actions of users. Each action changes the state, notifies our user if necessary, and queues webhooks."""

import hashlib
import re
from typing import Any

from kingdom.standins.github.action_context import ActionContext
from kingdom.standins.github.api import GithubRefusal, invalid
from kingdom.standins.github.commits import NO_COMMIT, commit_of_ref, set_ref
from kingdom.standins.github.webhooks import queue_webhooks
from kingdom.standins.state_file import StateFile


def add_repository(
    context: ActionContext, name: str, *, private: bool = False, default_branch: str = "main", git: str | None = None
) -> None:
    """Create a repository unless it exists. `git` is the directory with its branches and commits, if it has one."""
    if name not in context.state_file.state["repositories"]:
        stored = {"id": context.state_file.next_number("id"), "private": private, "default_branch": default_branch}
        stored |= {"created_at": context.at, "git": git, "collaborators": {}, "protection": {}}
        context.state_file.state["repositories"][name] = stored
        context.state_file.state["issues"][name] = {}


def open_issue(
    context: ActionContext, repository: str, *, title: str, body: str | None, labels: list[str], assignees: list[str]
) -> dict[str, Any]:
    """Open an issue."""
    issue = _add_issue(context, repository, title=title, body=body, labels=labels, pull=None)
    notify_us(context, issue, body)
    queue_webhook(context, issue, "opened")
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
    state = context.state_file.state
    known = commit_of_ref(state, repository, f"refs/heads/{ref}")
    if state["repositories"][repository].get("git") and known is None:
        raise invalid("PullRequest", "invalid", field="head")
    base_sha = commit_of_ref(state, repository, f"refs/heads/{base}") or new_sha(context.state_file)
    pull = {
        "head": {"owner": owner, "ref": ref, "sha": sha or known or new_sha(context.state_file)},
        "base": {"owner": repository.partition("/")[0], "ref": base, "sha": base_sha},
        "draft": draft,
        "files": files or [],
        "commits": 1,
        "requested_reviewers": [],
        "merged_at": None,
        "merged_by": None,
        "merge_commit_sha": None,
        "auto_merge": None,
        # Whether the server has computed if the pull request can be merged.
        "examined": False,
        "conflict": False,
    }
    stored = _add_issue(context, repository, title=title, body=body, labels=[], pull=pull)
    notify_us(context, stored, body)
    queue_webhook(context, stored, "opened")
    return stored


def request_review(context: ActionContext, pull: dict[str, Any], reviewers: list[str]) -> None:
    """Request reviews. A repeated request notifies again."""
    if pull["user"] in reviewers:
        raise GithubRefusal(422, "Review cannot be requested from pull request author.")
    requested = pull["pull"]["requested_reviewers"]
    for reviewer in reviewers:
        requested.extend([reviewer] if reviewer not in requested else [])
        touch(context, pull)
        if reviewer == context.state_file.state["login"]:
            notify_us(context, pull, because="review_requested")
        queue_webhook(context, pull, "review_requested", requested_reviewer=context.bodies.user(reviewer))


def withdraw_review_request(context: ActionContext, pull: dict[str, Any], reviewers: list[str]) -> None:
    """Withdraw review requests."""
    requested = pull["pull"]["requested_reviewers"]
    for reviewer in [each for each in reviewers if each in requested]:
        requested.remove(reviewer)
        touch(context, pull)
        queue_webhook(context, pull, "review_request_removed", requested_reviewer=context.bodies.user(reviewer))


def comment(context: ActionContext, issue: dict[str, Any], body: str) -> dict[str, Any]:
    """Comment on an issue or a pull request."""
    stored = {
        **new_reference(context, issue),
        "body": body,
        "created_at": context.at,
        "updated_at": context.at,
    }
    context.state_file.state["comments"].append(stored)
    touch(context, issue)
    notify_us(context, issue, body, latest=f"/repos/{issue['repository']}/issues/comments/{stored['id']}")
    bodies = context.bodies
    payload = {"issue": bodies.issue(issue), "comment": bodies.comment(stored)}
    queue_webhooks(context, "issue_comment", "created", issue["repository"], payload)
    return stored


def edit_comment(context: ActionContext, stored: dict[str, Any], body: str | None) -> None:
    """Change the text of a comment, or delete the comment."""
    state, bodies = context.state_file.state, context.bodies
    issue = state["issues"][stored["repository"]][str(stored["number"])]
    before = {"changes": {"body": {"from": stored["body"]}}} if body is not None else {}
    if body is None:
        state["comments"].remove(stored)
    else:
        stored.update(body=body, updated_at=context.at)
    payload = {"issue": bodies.issue(issue), "comment": bodies.comment(stored), **before}
    queue_webhooks(context, "issue_comment", "edited" if before else "deleted", stored["repository"], payload)


def push(context: ActionContext, pull: dict[str, Any], sha: str | None) -> None:
    """Push a commit to the branch of a pull request: `sha`, else the head of the branch in git, else a new commit."""
    head, name = pull["pull"]["head"], pull["repository"]
    ref, state = f"refs/heads/{head['ref']}", context.state_file.state
    after = sha or (state["repositories"][name].get("git") and commit_of_ref(state, name, ref))
    after = after or new_sha(context.state_file)
    if head["owner"] != name.partition("/")[0]:
        _move_head(context, pull, head["sha"], after)
        return
    before = head["sha"]
    set_ref(state, name, ref, after, before)
    move_branch(context, name, head["ref"], before, after)


def move_branch(
    context: ActionContext, repository: str, branch: str, before: str, after: str | None, *, conflict: bool = False
) -> None:
    """Announce a push to a branch, and update its pull requests. `after` is None if the branch was deleted.

    `conflict` makes every pull request into the branch conflict with it, in a repository without a git directory.
    """
    pulls = [each for each in context.state_file.state["issues"][repository].values() if each["pull"]]
    owner = repository.partition("/")[0]
    user = context.bodies.user(context.by)
    about = {"ref": f"refs/heads/{branch}", "before": before, "after": after or NO_COMMIT, "deleted": after is None}
    queue_webhooks(context, "push", None, repository, {**about, "forced": False, "commits": [], "pusher": user})
    for stored in [each for each in pulls if each["state"] == "open"]:
        pull = stored["pull"]
        if (pull["head"]["owner"], pull["head"]["ref"]) == (owner, branch):
            if after is None:
                close(context, stored)
            else:
                _move_head(context, stored, before, after)
        elif pull["base"]["ref"] == branch and after:
            pull["base"]["sha"] = after
            pull.update(examined=False, conflict=conflict or pull.get("conflict", False))


def _move_head(context: ActionContext, pull: dict[str, Any], before: str, after: str) -> None:
    pull["pull"]["head"]["sha"] = after
    pull["pull"].update(commits=pull["pull"]["commits"] + 1, examined=False, conflict=False)
    touch(context, pull)
    notify_us(context, pull)
    queue_webhook(context, pull, "synchronize", before=before, after=after)


def close(context: ActionContext, issue: dict[str, Any], *, merge_sha: str | None = None) -> None:
    """Close an issue or a pull request. `merge_sha` is the commit that merged a pull request."""
    issue.update(state="closed", closed_at=context.at, closed_by=context.by)
    if not issue["pull"]:
        issue["state_reason"] = "completed"
    elif merge_sha:
        issue["pull"].update(merged_at=context.at, merged_by=context.by, merge_commit_sha=merge_sha, auto_merge=None)
    touch(context, issue)
    notify_us(context, issue, part="state_change")
    queue_webhook(context, issue, "closed")


def reopen(context: ActionContext, issue: dict[str, Any]) -> None:
    """Reopen an issue or a pull request."""
    issue.update(state="open", closed_at=None, closed_by=None)
    issue["state_reason"] = None if issue["pull"] else "reopened"
    touch(context, issue)
    notify_us(context, issue, part="state_change")
    queue_webhook(context, issue, "reopened")


def edit(context: ActionContext, issue: dict[str, Any], changed: dict[str, Any]) -> None:
    """Change the title or text of an issue or a pull request."""
    before = {name: {"from": issue[name]} for name in changed}
    issue.update(changed)
    touch(context, issue)
    queue_webhook(context, issue, "edited", changes=before)


def assign(context: ActionContext, issue: dict[str, Any], assignees: list[str]) -> None:
    """Assign users. A repeated assignment notifies again."""
    for assignee in assignees:
        issue["assignees"].extend([assignee] if assignee not in issue["assignees"] else [])
        touch(context, issue)
        if assignee == context.state_file.state["login"]:
            notify_us(context, issue, because="assign")
        queue_webhook(context, issue, "assigned", assignee=context.bodies.user(assignee))


def label(context: ActionContext, issue: dict[str, Any], names: list[str]) -> None:
    """Add labels to an issue or a pull request."""
    for name in [each for each in names if each not in issue["labels"]]:
        issue["labels"].append(name)
        touch(context, issue)
        events = context.state_file.state["issue_events"]
        about = {"repository": issue["repository"], "number": issue["number"], "label": name}
        events.append({"id": len(events) + 1, "event": "labeled", "actor": context.by, "at": context.at, **about})
        queue_webhook(context, issue, "labeled", label=context.bodies.label(issue["repository"], name))


def unlabel(context: ActionContext, issue: dict[str, Any], name: str) -> None:
    """Remove a label from an issue or a pull request."""
    issue["labels"].remove(name)
    touch(context, issue)
    queue_webhook(context, issue, "unlabeled", label=context.bodies.label(issue["repository"], name))


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


def new_reference(context: ActionContext, issue: dict[str, Any]) -> dict[str, Any]:
    """Return a new id, the issue, and the author of a comment or review."""
    place = {"repository": issue["repository"], "number": issue["number"]}
    return {"id": context.state_file.next_number("id"), **place, "user": context.by}


def touch(context: ActionContext, issue: dict[str, Any]) -> None:
    """Record that an issue or a pull request changed."""
    issue["updated_at"] = context.at


def notify_us(
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


def queue_webhook(context: ActionContext, issue: dict[str, Any], action: str, **more: Any) -> None:
    """Queue the webhook of a change of an issue or a pull request."""
    bodies = context.bodies
    if issue["pull"]:
        payload = {"number": issue["number"], "pull_request": bodies.whole_pull_request(issue), **more}
        queue_webhooks(context, "pull_request", action, issue["repository"], payload)
    else:
        queue_webhooks(context, "issues", action, issue["repository"], {"issue": bodies.issue(issue), **more})


def _branches(pull: dict[str, Any]) -> tuple[str, str, str]:
    return pull["head"]["owner"], pull["head"]["ref"], pull["base"]["ref"]


def new_sha(state_file: StateFile) -> str:
    """Return the name of a new commit."""
    return hashlib.sha256(f"commit {state_file.next_number('commit')}".encode()).hexdigest()[:40]
