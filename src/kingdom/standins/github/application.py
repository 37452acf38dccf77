"""The server of the GitHub stand-in."""

from pathlib import Path
from typing import Any

from aiohttp import web

from kingdom.standins.github import accounts, control, git_refs, issues, notifications, pull_requests, webhooks
from kingdom.standins.github.api import TOKEN, answer_like_github
from kingdom.standins.server import STATE_FILE, new_application
from kingdom.standins.state_file import StateFile


def build_github(state: Path, *, token: str = "github-token", login: str = "kingdom-bot") -> web.Application:  # noqa: S107 - a token of a server without secrets
    """Return a GitHub server for the user `login`, with its state in a file."""
    application = new_application(StateFile(state, _empty_state()))
    application[TOKEN] = token
    application[STATE_FILE].state["login"] = login
    application.middlewares.append(answer_like_github)
    for part in (accounts, notifications, issues, git_refs, pull_requests, webhooks, control):
        application.router.add_routes(part.ROUTES)
    webhooks.start_sender(application)
    return application


def _empty_state() -> dict[str, Any]:
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
