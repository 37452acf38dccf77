"""The server of the GitHub stand-in."""

from pathlib import Path
from typing import Any

from aiohttp import web

from kingdom.standins.github import (
    accounts,
    control,
    environment_control,
    git_refs,
    issues,
    merging,
    notifications,
    pull_requests,
    review_threads,
    webhooks,
)
from kingdom.standins.github.api import TOKEN, answer_like_github
from kingdom.standins.github.apps import routes as apps
from kingdom.standins.github.apps.authentication import authenticate
from kingdom.standins.github.checks import routes as checks
from kingdom.standins.github.graphql import routes as graphql
from kingdom.standins.server import STATE_FILE, new_application
from kingdom.standins.state_file import StateFile


def build_github(state: Path, *, token: str = "github-token", login: str = "kingdom-bot") -> web.Application:  # noqa: S107 - a token of a server without secrets
    """Return a GitHub server for the user `login`, with its state in a file."""
    state_file = StateFile(state, _empty_state())
    # A file of an earlier version lacks some parts.
    state_file.state = _empty_state() | state_file.state
    application = new_application(state_file)
    application[TOKEN] = token
    application[STATE_FILE].state["login"] = login
    application.middlewares.append(answer_like_github(authenticate))
    pulls = (pull_requests, merging, review_threads)
    for part in (accounts, apps, notifications, issues, git_refs, *pulls, checks, graphql, webhooks):
        application.router.add_routes(part.ROUTES)
    for part in (control, environment_control):
        application.router.add_routes(part.ROUTES)
    webhooks.start_sender(application)
    return application


def _empty_state() -> dict[str, Any]:
    return {
        "limits": {"limit": 5000, "used": 0, "reset": 0, "status": 403, "poll_interval": 60, "secondary": None},
        "repositories": {},
        "issues": {},
        "issue_events": [],
        "comments": [],
        "reviews": [],
        "review_comments": [],
        "threads": {},
        "threads_changed_at": None,
        "refs": {},
        "parents": {},
        "check_suites": [],
        "check_runs": [],
        "statuses": [],
        "apps": [],
        "installations": [],
        "tokens": {},
        "teams": {},
        "hooks": [],
        "deliveries": [],
        "outbox": [],
        "held_back": [],
    }
