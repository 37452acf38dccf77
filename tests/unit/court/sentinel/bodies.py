"""Notifications and webhooks of GitHub, with only the fields that the Sentinel reads."""

from typing import Any

US = "kingdom-bot"
REPOSITORY = {"id": 5, "full_name": "acme/app"}
PULL_URL = "https://api.github.com/repos/acme/app/pulls/7"
ISSUE_URL = "https://api.github.com/repos/acme/app/issues/7"
COMMENT_URL = "https://api.github.com/repos/acme/app/issues/comments/99"


def notification(reason: str = "review_requested", subject: str = "PullRequest", **more: Any) -> dict[str, Any]:
    url = PULL_URL if subject == "PullRequest" else ISSUE_URL
    return {
        "id": "12345678",
        "unread": True,
        "reason": reason,
        "updated_at": "2026-02-07T10:00:00Z",
        "subject": {"title": "Add rocket", "url": url, "latest_comment_url": url, "type": subject},
        "repository": REPOSITORY,
        **more,
    }


def user(login: str) -> dict[str, Any]:
    return {"login": login, "id": 1}


def thing(*, pull: bool, author: str = "octocat", **more: Any) -> dict[str, Any]:
    return {
        "number": 7,
        "title": "Add rocket",
        "body": "please look",
        "url": PULL_URL if pull else ISSUE_URL,
        "html_url": "https://github.com/acme/app/pull/7",
        "updated_at": "2026-02-07T10:00:00Z",
        "user": user(author),
        "assignees": [],
        **more,
    }


def webhook(action: str, *, by: str = "octocat", **more: Any) -> dict[str, Any]:
    return {"action": action, "repository": REPOSITORY, "sender": user(by), **more}


def review_requested(login: str = US, **more: Any) -> dict[str, Any]:
    pull = thing(pull=True)
    return webhook("review_requested", pull_request=pull, requested_reviewer=user(login), **more)


def commented(body: str, *, pull: bool = True, by: str = "octocat", author: str = "octocat") -> dict[str, Any]:
    issue = thing(pull=False, author=author, **({"pull_request": {"url": PULL_URL}} if pull else {}))
    comment = {
        "id": 99,
        "body": body,
        "user": user(by),
        "created_at": "2026-02-07T10:01:00Z",
        "html_url": "https://x/99",
    }
    return webhook("created", by=by, issue=issue, comment=comment)
