"""Actions of users on reviews: line comments, verdicts, replies, and resolved threads."""

from typing import Any, Literal

from kingdom.standins.github.action_context import ActionContext
from kingdom.standins.github.actions import new_reference, notify_us, touch
from kingdom.standins.github.api import GithubRefusal, invalid
from kingdom.standins.github.commits import files_of, lines_of_patch
from kingdom.standins.github.webhooks import queue_webhooks

ReviewEvent = Literal["APPROVE", "REQUEST_CHANGES", "COMMENT"]
_REVIEW_STATES = {"APPROVE": "APPROVED", "REQUEST_CHANGES": "CHANGES_REQUESTED", "COMMENT": "COMMENTED"}


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
        **new_reference(context, pull),
        "body": body,
        "commit_id": commit,
        "state": "PENDING",
        "submitted_at": None,
    }
    context.state_file.state["reviews"].append(stored)
    for line_comment in line_comments:
        if problem := _line_problem(context, pull, line_comment):
            raise GithubRefusal(422, "Unprocessable Entity", f"{problem.capitalize()} could not be resolved")
        _add_line_comment(context, pull, stored, line_comment)
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
    touch(context, pull)
    notify_us(context, pull, review["body"], *(each["body"] for each in line_comments), latest=None)
    # GitHub writes the state of a review in lower case in webhooks.
    review_body = {**bodies.review(review), "state": review["state"].lower()}
    payload = {"review": review_body, "pull_request": bodies.pull_request(pull)}
    queue_webhooks(context, "pull_request_review", "submitted", pull["repository"], payload)
    for line_comment in line_comments:
        payload = {"comment": bodies.review_comment(line_comment), "pull_request": bodies.pull_request(pull)}
        queue_webhooks(context, "pull_request_review_comment", "created", pull["repository"], payload)


def comment_on_line(
    context: ActionContext, pull: dict[str, Any], line_comment: dict[str, Any], commit_id: str
) -> dict[str, Any]:
    """Write one line comment, which is a review without a body."""
    if problem := _line_problem(context, pull, line_comment):
        raise invalid("PullRequestReviewComment", "invalid", field=f"pull_request_review_thread.{problem}")
    review = draft_review(context, pull, body="", commit_id=commit_id, line_comments=[line_comment])
    submit_review(context, pull, review, "COMMENT")
    stored: dict[str, Any] = context.state_file.state["review_comments"][-1]
    return stored


def reply(context: ActionContext, pull: dict[str, Any], first: dict[str, Any], body: str) -> dict[str, Any]:
    """Reply to the first comment of a thread."""
    if first.get("in_reply_to"):
        raise invalid("PullRequestReviewComment", "invalid", field="in_reply_to")
    review = draft_review(context, pull, body="", commit_id=None, line_comments=[])
    copied = {name: first[name] for name in ("path", "line", "position", "side", "start_line")}
    stored = _add_line_comment(context, pull, review, {**copied, "body": body, "in_reply_to": first["id"]})
    submit_review(context, pull, review, "COMMENT")
    return stored


def edit_line_comment(context: ActionContext, line_comment: dict[str, Any], body: str) -> None:
    """Change the text of a line comment."""
    before, pull = line_comment["body"], _pull_of(context, line_comment)
    line_comment.update(body=body, updated_at=context.at)
    bodies = context.bodies
    payload = {"comment": bodies.review_comment(line_comment), "pull_request": bodies.pull_request(pull)}
    payload["changes"] = {"body": {"from": before}}
    queue_webhooks(context, "pull_request_review_comment", "edited", pull["repository"], payload)


def dismiss_review(context: ActionContext, pull: dict[str, Any], review: dict[str, Any]) -> None:
    """Dismiss a verdict, so that it no longer counts."""
    if review["state"] not in ("APPROVED", "CHANGES_REQUESTED"):
        raise GithubRefusal(422, "Can not dismiss a pending or commented pull request review")
    review["state"] = "DISMISSED"
    bodies = context.bodies
    payload = {"review": {**bodies.review(review), "state": "dismissed"}, "pull_request": bodies.pull_request(pull)}
    queue_webhooks(context, "pull_request_review", "dismissed", pull["repository"], payload)


def set_resolved(context: ActionContext, first: dict[str, Any], *, resolved: bool) -> None:
    """Resolve the thread that begins with a comment, or open it again."""
    first["resolved_by"] = context.by if resolved else None
    bodies, pull = context.bodies, _pull_of(context, first)
    comments = [bodies.review_comment(each) for each in bodies.thread_of_comment(pull, first)]
    payload = {"thread": {"node_id": f"PRRT_{first['id']}", "comments": comments}}
    payload["pull_request"] = bodies.pull_request(pull)
    action = "resolved" if resolved else "unresolved"
    queue_webhooks(context, "pull_request_review_thread", action, pull["repository"], payload)


def _add_line_comment(
    context: ActionContext, pull: dict[str, Any], review: dict[str, Any], line_comment: dict[str, Any]
) -> dict[str, Any]:
    times = {"created_at": context.at, "updated_at": context.at}
    about = {"review_id": review["id"], "commit_id": review["commit_id"], "in_reply_to": None, "resolved_by": None}
    stored = {**new_reference(context, pull), **about, **times, **line_comment}
    context.state_file.state["review_comments"].append(stored)
    return stored


def _line_problem(context: ActionContext, pull: dict[str, Any], line_comment: dict[str, Any]) -> str | None:
    """Return the field that names a place outside the diff, or None. Without known patches, every place is valid."""
    patches = {each["filename"]: each["patch"] for each in files_of(context.state_file.state, pull)}
    if not any(patches.values()):
        return None
    if line_comment["path"] not in patches:
        return "path"
    lines = lines_of_patch(patches[line_comment["path"]], line_comment["side"])
    return None if line_comment["line"] is None or line_comment["line"] in lines else "line"


def _pull_of(context: ActionContext, part: dict[str, Any]) -> dict[str, Any]:
    pull: dict[str, Any] = context.state_file.state["issues"][part["repository"]][str(part["number"])]
    return pull
