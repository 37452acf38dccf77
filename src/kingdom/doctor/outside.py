"""The systems outside: whether they know our tokens, and what these may do. No token is ever shown."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib import import_module
from typing import TypeVar

import aiohttp

from kingdom.court.petitions.github import GithubApi
from kingdom.court.petitions.http_api import HttpApi, Unreachable
from kingdom.court.petitions.jira import JiraApi
from kingdom.court.remote_http import HttpReply
from kingdom.doctor.check import Verdict, fail, in_thread, ok, skipped, warn
from kingdom.doctor.patient import Patient
from kingdom.errors import Unavailable

LONGEST_CALL = timedelta(seconds=8)
_NOT_NAMED = "kingdom.yaml does not name them"
_UNAUTHORIZED, _FORBIDDEN, _BAD_REQUEST, _NOT_FOUND = 401, 403, 400, 404
_GITHUB_SCOPES = ("notifications", "repo")
_SLACK_SCOPES = frozenset(
    {"chat:write", "reactions:write", "im:write", "app_mentions:read", "channels:read", "groups:read"}
    | {"channels:history", "groups:history", "im:history", "metadata.message:read"}
)
_Api = TypeVar("_Api", bound=HttpApi)


async def github(patient: Patient) -> Verdict:
    """Ask GitHub whose token it is, and whether it may read notifications."""
    settings = patient.realm.sentinel.github
    if settings is None:
        return skipped(_NOT_NAMED)
    token = (
        f"a classic token with the scopes notifications and repo in {patient.source_of('sentinel', 'github', 'token')}"
    )
    async with _asking(GithubApi(settings.api_url, settings.token, LONGEST_CALL), "GitHub") as api:
        user = await api.ask("/user")
        if user.status == _UNAUTHORIZED:
            return fail("GitHub does not take the token: 401", f"put {token}")
        login = _text(user, "login")
        if not user.ok or not login:
            return fail(
                f"GitHub answered {user.status} to whose token it is", f"check sentinel.github.api_url, or put {token}"
            )
        if missing := _missing_scopes(user):
            return fail(f"the token of {login} lacks the scope {' and '.join(missing)}", f"put {token}")
        notifications = await api.ask("/notifications", per_page=1)
    if notifications.status in (_FORBIDDEN, _NOT_FOUND):
        return fail(f"the token of {login} may not read notifications: {notifications.status}", f"put {token}")
    if login.lower() not in (each.lower() for each in settings.logins):
        found = f"the token is of {login}, which is none of {', '.join(settings.logins)}: what we do would come back"
        return fail(found, f"write {login} first in sentinel.github.logins")
    left = user.headers.get("X-RateLimit-Remaining", "")
    if left == "0":
        return warn(f"{login} may ask nothing more this hour", "raise sentinel.github.poll_seconds, and wait")
    scopes = user.headers.get("X-OAuth-Scopes", "")
    return ok(f"{login}{', scopes ' + scopes if scopes else ''}{f'; {left} requests left' if left else ''}")


async def jira(patient: Patient) -> Verdict:
    """Ask Jira whose token it is, and whether it understands the search."""
    settings = patient.realm.sentinel.jira
    if settings is None:
        return skipped(_NOT_NAMED)
    token = f"put a token of {settings.email} in {patient.source_of('sentinel', 'jira', 'token')}"
    async with _asking(JiraApi(settings.url, settings.email, settings.token, LONGEST_CALL), "Jira") as api:
        myself = await api.ask("/rest/api/2/myself")
        if myself.status in (_UNAUTHORIZED, _FORBIDDEN):
            return fail(f"Jira does not take the token: {myself.status}", token)
        if not myself.ok or not _text(myself, "accountId"):
            return fail(f"Jira answered {myself.status} to whose token it is", "check sentinel.jira.url")
        found = await api.send("/rest/api/2/search/jql", {"jql": settings.jql, "maxResults": 1, "fields": ["id"]})
    if found.status == _BAD_REQUEST:
        return fail(f"Jira does not understand the search {settings.jql!r}", "correct sentinel.jira.jql")
    if not found.ok:
        return fail(f"Jira answered {found.status} to a search", token)
    return ok(f"{_text(myself, 'displayName') or settings.email}; it understands the search")


async def slack_bot(patient: Patient) -> Verdict:
    """Ask Slack whose token the bot has, and what it may do."""
    settings = patient.realm.envoy.slack
    if settings is None:
        return skipped(_NOT_NAMED)
    try:
        await in_thread(lambda: import_module("slack_bolt"))
    except ImportError:
        return fail("the client for Slack is not installed", "pip install 'kingdom[slack]'")
    reply = await _ask_slack(settings.base_url, settings.bot_token, "auth.test")
    if problem := _slack_problem(reply):
        token = patient.source_of("envoy", "slack", "bot_token")
        return fail(
            f"Slack does not take the token of the bot: {problem}", f"put the bot token of the app (xoxb-…) in {token}"
        )
    scopes = frozenset(reply.headers.get("X-OAuth-Scopes", "").replace(" ", "").split(",")) - {""}
    if scopes and (missing := sorted(_SLACK_SCOPES - scopes)):
        found = f"the bot lacks the scopes {', '.join(missing)}"
        return fail(found, "add them under OAuth & Permissions of the app, and install it again")
    return ok(f"{_text(reply, 'user')} in {_text(reply, 'team')}")


async def slack_socket(patient: Patient) -> Verdict:
    """Ask Slack for a connection, without making it."""
    settings = patient.realm.envoy.slack
    if settings is None:
        return skipped(_NOT_NAMED)
    if not settings.app_token:
        return warn("without envoy.slack.app_token nobody hears what people say", "create one with connections:write")
    reply = await _ask_slack(settings.base_url, settings.app_token, "apps.connections.open")
    if problem := _slack_problem(reply):
        token = patient.source_of("envoy", "slack", "app_token")
        fix = f"switch Socket Mode on, and put an app-level token (xapp-…) with connections:write in {token}"
        return fail(f"Slack opens no socket: {problem}", fix)
    return ok("apps.connections.open is answered")


@asynccontextmanager
async def _asking(api: _Api, name: str) -> AsyncIterator[_Api]:
    try:
        yield api
    except (Unreachable, aiohttp.ClientError, TimeoutError) as error:
        raise Unavailable(f"{name} cannot be asked at {api.url}: {str(error) or type(error).__name__}") from error
    finally:
        await api.close()


async def _ask_slack(url: str, token: str, method: str) -> HttpReply:
    async with _asking(HttpApi(url, {"Authorization": f"Bearer {token}"}, LONGEST_CALL), "Slack") as api:
        return await api.send(f"/{method}", {})


def _slack_problem(reply: HttpReply) -> str:
    if not reply.ok or not isinstance(reply.body, dict):
        return f"it answered {reply.status}"
    return "" if reply.body.get("ok") else str(reply.body.get("error") or "no reason was given")


def _missing_scopes(reply: HttpReply) -> list[str]:
    """Return what a classic token lacks; others do not tell."""
    if not (said := reply.headers.get("X-OAuth-Scopes")):
        return []
    scopes = {each.strip() for each in said.split(",")}
    enough = {"notifications": {"notifications", "repo"}, "repo": {"repo", "public_repo"}}
    return [name for name in _GITHUB_SCOPES if not enough[name] & scopes]


def _text(reply: HttpReply, field: str) -> str:
    return str(reply.body.get(field) or "") if isinstance(reply.body, dict) else ""
