"""What people do on GitHub: each changes what is kept, tells our user if it concerns them, and calls the webhooks."""

import hashlib
import re
from typing import Any, Literal

from kingdom.standins.book import Book
from kingdom.standins.github.api import Refused, invalid
from kingdom.standins.github.happening import Happening
from kingdom.standins.github.webhooks import announce

Verdict = Literal["APPROVE", "REQUEST_CHANGES", "COMMENT"]
_STATES = {"APPROVE": "APPROVED", "REQUEST_CHANGES": "CHANGES_REQUESTED", "COMMENT": "COMMENTED"}


def add_repository(happening: Happening, name: str, *, private: bool = False, default_branch: str = "main") -> None:
    """Have a repository, unless it is there."""
    if name not in happening.book.state["repositories"]:
        kept = {"id": happening.book.next_number("id"), "private": private, "default_branch": default_branch}
        happening.book.state["repositories"][name] = kept | {"created_at": happening.at}
        happening.book.state["issues"][name] = {}


def open_issue(
    happening: Happening, repository: str, *, title: str, body: str | None, labels: list[str], assignees: list[str]
) -> dict[str, Any]:
    """Open an issue."""
    issue = _add(happening, repository, title=title, body=body, labels=labels, pull=None)
    _tell(happening, issue, body)
    _announce(happening, issue, "opened")
    if assignees:
        assign(happening, issue, assignees)
    return issue


def open_pull_request(
    happening: Happening,
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
    """Open a pull request; there can be only one that is open for the same two branches."""
    first, _, second = head.partition(":")
    owner, ref = (first, second) if second else (repository.partition("/")[0], first)
    for other in happening.book.state["issues"][repository].values():
        pull = other["pull"]
        if pull and other["state"] == "open" and _ends(pull) == (owner, ref, base):
            message = f"A pull request already exists for {owner}:{ref}."
            raise invalid("PullRequest", "custom", message=message)
    if (owner, ref) == (repository.partition("/")[0], base):
        raise invalid("PullRequest", "custom", message=f"No commits between {base} and {ref}")
    pull = {
        "head": {"owner": owner, "ref": ref, "sha": sha or _new_sha(happening.book)},
        "base": {"owner": repository.partition("/")[0], "ref": base, "sha": _new_sha(happening.book)},
        "draft": draft,
        "files": files or [],
        "commits": 1,
        "requested_reviewers": [],
        "merged_at": None,
        "merged_by": None,
        "merge_commit_sha": None,
    }
    kept = _add(happening, repository, title=title, body=body, labels=[], pull=pull)
    _tell(happening, kept, body)
    _announce(happening, kept, "opened")
    return kept


def request_review(happening: Happening, pull: dict[str, Any], reviewers: list[str]) -> None:
    """Ask people for a review; whoever is asked again is told again."""
    if pull["user"] in reviewers:
        raise Refused(422, "Review cannot be requested from pull request author.")
    asked = pull["pull"]["requested_reviewers"]
    for reviewer in reviewers:
        asked.extend([reviewer] if reviewer not in asked else [])
        _touch(happening, pull)
        if reviewer == happening.book.state["login"]:
            _tell(happening, pull, because="review_requested")
        _announce(happening, pull, "review_requested", requested_reviewer=happening.bodies.user(reviewer))


def withdraw_review_request(happening: Happening, pull: dict[str, Any], reviewers: list[str]) -> None:
    """Ask people for a review no longer."""
    asked = pull["pull"]["requested_reviewers"]
    for reviewer in [each for each in reviewers if each in asked]:
        asked.remove(reviewer)
        _touch(happening, pull)
        _announce(happening, pull, "review_request_removed", requested_reviewer=happening.bodies.user(reviewer))


def comment(happening: Happening, issue: dict[str, Any], body: str) -> dict[str, Any]:
    """Say something about an issue or a pull request."""
    kept = {
        **_here(happening, issue),
        "body": body,
        "created_at": happening.at,
        "updated_at": happening.at,
    }
    happening.book.state["comments"].append(kept)
    _touch(happening, issue)
    _tell(happening, issue, body, latest=f"/repos/{issue['repository']}/issues/comments/{kept['id']}")
    bodies = happening.bodies
    payload = {"issue": bodies.issue(issue), "comment": bodies.comment(kept)}
    announce(happening, "issue_comment", "created", issue["repository"], payload)
    return kept


def draft_review(
    happening: Happening,
    pull: dict[str, Any],
    *,
    body: str,
    commit_id: str | None,
    remarks: list[dict[str, Any]],
) -> dict[str, Any]:
    """Write a review that nobody else sees yet."""
    commit = commit_id or pull["pull"]["head"]["sha"]
    kept = {**_here(happening, pull), "body": body, "commit_id": commit, "state": "PENDING", "submitted_at": None}
    happening.book.state["reviews"].append(kept)
    for remark in remarks:
        about = {"review_id": kept["id"], "commit_id": commit, "created_at": happening.at}
        happening.book.state["review_comments"].append({**_here(happening, pull), **about, **remark})
    return kept


def submit_review(happening: Happening, pull: dict[str, Any], review: dict[str, Any], verdict: Verdict) -> None:
    """Publish a review with its verdict; its author is not asked for one any more."""
    if review["user"] == pull["user"] and verdict != "COMMENT":
        doing = "approve" if verdict == "APPROVE" else "request changes on"
        raise Refused(422, "Unprocessable Entity", f"Can not {doing} your own pull request")
    bodies = happening.bodies
    remarks = [each for each in bodies.of(pull, "review_comments") if each["review_id"] == review["id"]]
    if verdict != "APPROVE" and not review["body"] and not remarks:
        raise Refused(422, "Unprocessable Entity", "Body can't be blank")
    review.update(state=_STATES[verdict], submitted_at=happening.at)
    asked = pull["pull"]["requested_reviewers"]
    asked[:] = [each for each in asked if each != review["user"]]
    _touch(happening, pull)
    _tell(happening, pull, review["body"], *(each["body"] for each in remarks), latest=None)
    # Webhooks spell the state of a review small.
    said = {**bodies.review(review), "state": review["state"].lower()}
    payload = {"review": said, "pull_request": bodies.pull_request(pull)}
    announce(happening, "pull_request_review", "submitted", pull["repository"], payload)
    for remark in remarks:
        payload = {"comment": bodies.review_comment(remark), "pull_request": bodies.pull_request(pull)}
        announce(happening, "pull_request_review_comment", "created", pull["repository"], payload)


def push(happening: Happening, pull: dict[str, Any], sha: str | None) -> None:
    """Push a commit to the branch of a pull request."""
    head = pull["pull"]["head"]
    before, head["sha"] = head["sha"], sha or _new_sha(happening.book)
    pull["pull"]["commits"] += 1
    _touch(happening, pull)
    _tell(happening, pull)
    _announce(happening, pull, "synchronize", before=before, after=head["sha"])


def close(happening: Happening, issue: dict[str, Any], *, merge: bool = False) -> None:
    """Close an issue or a pull request, the latter by a merge if wanted."""
    issue.update(state="closed", closed_at=happening.at, closed_by=happening.by)
    if not issue["pull"]:
        issue["state_reason"] = "completed"
    elif merge:
        sha = _new_sha(happening.book)
        issue["pull"].update(merged_at=happening.at, merged_by=happening.by, merge_commit_sha=sha)
    _touch(happening, issue)
    _tell(happening, issue, part="state_change")
    _announce(happening, issue, "closed")


def reopen(happening: Happening, issue: dict[str, Any]) -> None:
    """Open an issue or a pull request again."""
    issue.update(state="open", closed_at=None, closed_by=None)
    issue["state_reason"] = None if issue["pull"] else "reopened"
    _touch(happening, issue)
    _tell(happening, issue, part="state_change")
    _announce(happening, issue, "reopened")


def edit(happening: Happening, issue: dict[str, Any], changed: dict[str, Any]) -> None:
    """Give an issue or a pull request another title or text."""
    before = {name: {"from": issue[name]} for name in changed}
    issue.update(changed)
    _touch(happening, issue)
    _announce(happening, issue, "edited", changes=before)


def assign(happening: Happening, issue: dict[str, Any], assignees: list[str]) -> None:
    """Make people responsible; whoever is already is told again."""
    for assignee in assignees:
        issue["assignees"].extend([assignee] if assignee not in issue["assignees"] else [])
        _touch(happening, issue)
        if assignee == happening.book.state["login"]:
            _tell(happening, issue, because="assign")
        _announce(happening, issue, "assigned", assignee=happening.bodies.user(assignee))


def label(happening: Happening, issue: dict[str, Any], names: list[str]) -> None:
    """Put labels on an issue or a pull request."""
    for name in [each for each in names if each not in issue["labels"]]:
        issue["labels"].append(name)
        _touch(happening, issue)
        _announce(happening, issue, "labeled", label=happening.bodies.label(issue["repository"], name))


def _add(
    happening: Happening,
    repository: str,
    *,
    title: str,
    body: str | None,
    labels: list[str],
    pull: dict[str, Any] | None,
) -> dict[str, Any]:
    number = happening.book.next_number(f"issues of {repository}")
    kept = {
        "id": happening.book.next_number("id"),
        "repository": repository,
        "number": number,
        "title": title,
        "body": body,
        "user": happening.by,
        "state": "open",
        "state_reason": None,
        "created_at": happening.at,
        "updated_at": happening.at,
        "closed_at": None,
        "closed_by": None,
        "labels": list(labels),
        "assignees": [],
        "pull": pull,
        # Why our user hears of it when nothing else gives a reason.
        "part": "author" if happening.by == happening.book.state["login"] else None,
    }
    happening.book.state["issues"][repository][str(number)] = kept
    return kept


def _here(happening: Happening, issue: dict[str, Any]) -> dict[str, Any]:
    place = {"repository": issue["repository"], "number": issue["number"]}
    return {"id": happening.book.next_number("id"), **place, "user": happening.by}


def _touch(happening: Happening, issue: dict[str, Any]) -> None:
    issue["updated_at"] = happening.at


def _tell(
    happening: Happening,
    issue: dict[str, Any],
    *said: str | None,
    because: str | None = None,
    part: str = "comment",
    latest: str | None = "",
) -> None:
    """Put the thread of our user on top, unless it is their own doing or none of their concern.

    `part` is why they hear of it later if it is their own doing. An empty `latest` leaves the latest comment as it was.
    """
    state = happening.book.state
    if happening.by == state["login"]:
        issue["part"] = issue["part"] or part
        return
    place = f"{issue['repository']}#{issue['number']}"
    thread = state["threads"].get(place)
    named = re.compile(rf"(?<![\w/])@{re.escape(state['login'])}(?![\w-])", re.IGNORECASE)
    mentioned = any(named.search(each or "") for each in said)
    reason = happening.reason or because or ("mention" if mentioned else None)
    reason = reason or (thread and thread["reason"]) or issue["part"]
    if reason is None:
        return
    if thread is None:
        kind = "pulls" if issue["pull"] else "issues"
        first = f"/repos/{issue['repository']}/{kind}/{issue['number']}"
        thread = {"id": str(happening.book.next_number("thread")), "last_read_at": None, "latest_comment": first}
        state["threads"][place] = thread | {"repository": issue["repository"], "number": issue["number"]}
        thread = state["threads"][place]
    thread.update(unread=True, reason=reason, updated_at=happening.at)
    if latest != "":
        thread["latest_comment"] = latest
    state["threads_changed_at"] = max(state["threads_changed_at"] or "", happening.at)


def _announce(happening: Happening, issue: dict[str, Any], action: str, **more: Any) -> None:
    bodies = happening.bodies
    if issue["pull"]:
        payload = {"number": issue["number"], "pull_request": bodies.whole_pull_request(issue), **more}
        announce(happening, "pull_request", action, issue["repository"], payload)
    else:
        announce(happening, "issues", action, issue["repository"], {"issue": bodies.issue(issue), **more})


def _ends(pull: dict[str, Any]) -> tuple[str, str, str]:
    return pull["head"]["owner"], pull["head"]["ref"], pull["base"]["ref"]


def _new_sha(book: Book) -> str:
    return hashlib.sha256(f"commit {book.next_number('commit')}".encode()).hexdigest()[:40]
