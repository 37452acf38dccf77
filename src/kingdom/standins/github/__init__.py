"""A server that behaves like the REST API and the webhooks of GitHub, for one user among others."""

from pathlib import Path
from typing import Any

from aiohttp import web

from kingdom.standins.book import Book
from kingdom.standins.github import accounts, control, git_refs, issues, notifications, pull_requests, webhooks
from kingdom.standins.github.api import TOKEN, answer_like_github
from kingdom.standins.server import BOOK, new_application


def github(state: Path, *, token: str = "github-token", login: str = "kingdom-bot") -> web.Application:  # noqa: S107 - it guards nothing
    """Return GitHub as the user `login` sees it with a token; what happens there is kept in the file `state`."""
    application = new_application(Book(state, _nothing_yet()))
    application[TOKEN] = token
    application[BOOK].state["login"] = login
    application.middlewares.append(answer_like_github)
    for part in (accounts, notifications, issues, git_refs, pull_requests, webhooks, control):
        application.router.add_routes(part.ROUTES)
    webhooks.send_from(application)
    return application


def _nothing_yet() -> dict[str, Any]:
    return {
        "limits": {"limit": 5000, "used": 0, "reset": 0, "status": 403, "poll_interval": 60, "secondary": None},
        "repositories": {},
        "issues": {},
        "comments": [],
        "reviews": [],
        "review_comments": [],
        "threads": {},
        "threads_changed_at": None,
        "refs": {},
        "hooks": [],
        "deliveries": [],
        "outbox": [],
        "held_back": [],
    }
