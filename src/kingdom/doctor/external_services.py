"""Check whether GitHub, Jira and Slack accept the tokens of the realm, and their scopes. No token is shown."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib import import_module
from typing import TypeVar

import aiohttp

from kingdom.court.petitions.github.access import (
    APP_PERMISSIONS,
    AppInstallation,
    UserToken,
    missing_permissions,
)
from kingdom.court.petitions.github.api import GithubApi
from kingdom.court.petitions.http_api import HttpApi, NotAuthorized, Unreachable
from kingdom.court.petitions.jira import JiraApi
from kingdom.court.remote_http import HttpReply
from kingdom.doctor.check import CheckResult, fail, ok, run_in_thread, skipped, warn
from kingdom.doctor.context import CheckContext
from kingdom.errors import Unavailable, describe_error

CALL_LIMIT = timedelta(seconds=8)
_NOT_CONFIGURED = "not configured in kingdom.yaml"
_UNAUTHORIZED, _FORBIDDEN, _BAD_REQUEST, _NOT_FOUND = 401, 403, 400, 404
_GITHUB_SCOPES = ("notifications", "repo")
_SLACK_SCOPES = frozenset(
    {"chat:write", "reactions:write", "im:write", "app_mentions:read", "channels:read", "groups:read"}
    | {"channels:history", "groups:history", "im:history", "metadata.message:read"}
)
_Api = TypeVar("_Api", bound=HttpApi | AppInstallation)


async def check_github(context: CheckContext) -> CheckResult:
    """Check the user of the GitHub token, and whether the token may read notifications."""
    settings = context.realm.sentinel.github
    if settings is None:
        return skipped(_NOT_CONFIGURED)
    if not settings.token:
        return skipped("not needed: events arrive by webhook, and an App performs petitions")
    source = context.describe_source("sentinel", "github", "token")
    token = f"a classic token with the scopes notifications and repo in {source}"
    async with _calling(GithubApi(settings.api_url, UserToken(settings.token), CALL_LIMIT), "GitHub") as api:
        user = await api.ask("/user")
        if user.status == _UNAUTHORIZED:
            return fail("GitHub rejects the token: 401", f"put {token}")
        login = _text(user, "login")
        if not user.ok or not login:
            return fail(f"GitHub answered {user.status} to GET /user", f"check sentinel.github.api_url, or put {token}")
        if missing := _missing_scopes(user):
            return fail(f"the token of {login} lacks the scope {' and '.join(missing)}", f"put {token}")
        notifications = await api.ask("/notifications", per_page=1)
    if notifications.status in (_FORBIDDEN, _NOT_FOUND):
        return fail(f"the token of {login} may not read notifications: {notifications.status}", f"put {token}")
    if login.lower() not in (each.lower() for each in settings.logins):
        logins = ", ".join(settings.logins)
        found = f"the token belongs to {login}, not to {logins}: Kingdom would react to its own comments"
        return fail(found, f"write {login} first in sentinel.github.logins")
    left = user.headers.get("X-RateLimit-Remaining", "")
    if left == "0":
        return warn(f"{login} has no requests left this hour", "raise sentinel.github.poll_seconds, and wait")
    scopes = user.headers.get("X-OAuth-Scopes", "")
    return ok(f"{login}{', scopes ' + scopes if scopes else ''}{f'; {left} requests left' if left else ''}")


async def check_github_app(context: CheckContext) -> CheckResult:
    """Check the key of the GitHub App, its installation, and the permissions that the installation grants."""
    settings = context.realm.sentinel.github
    if settings is None or settings.app is None:
        return skipped(_NOT_CONFIGURED)
    number = settings.app.id
    key = f"put a private key of the App {number} in {context.describe_source('sentinel', 'github', 'app', 'key')}"
    async with _calling(AppInstallation(settings.api_url, settings.app, CALL_LIMIT), "GitHub") as app:
        try:
            about = await app.show()
            installation = await app.show(f"/installations/{settings.app.installation}")
        except NotAuthorized as error:
            return fail(str(error), key)
    slug = _text(about, "slug")
    if about.status in (_UNAUTHORIZED, _NOT_FOUND):
        return fail(f"GitHub rejects the key of the App {number}: {about.status}", key)
    if not about.ok or not slug:
        return fail(f"GitHub answered {about.status} to GET /app", "check sentinel.github.api_url")
    if not installation.ok or not isinstance(installation.body, dict):
        found = f"{slug} has no installation {settings.app.installation}: {installation.status}"
        return fail(found, "put the last number of the installation's page in sentinel.github.app.installation")
    if installation.body.get("suspended_at"):
        return fail(f"the installation {settings.app.installation} of {slug} is suspended", "unsuspend it on GitHub")
    granted = installation.body.get("permissions")
    if missing := missing_permissions(granted if isinstance(granted, dict) else {}):
        found = f"the installation of {slug} lacks the permissions {', '.join(missing)}"
        return fail(found, "grant them in the settings of the App, and accept them in those of the installation")
    bot = f"{slug}[bot]"
    if bot.lower() not in (each.lower() for each in settings.logins):
        found = f"{bot} is not in sentinel.github.logins: Kingdom would react to its own comments"
        return fail(found, f'add "{bot}" to sentinel.github.logins')
    return ok(f"{bot} may {', '.join(f'{level} {name}' for name, level in APP_PERMISSIONS.items())}")


async def check_jira(context: CheckContext) -> CheckResult:
    """Check the user of the Jira token, and whether Jira accepts the search."""
    settings = context.realm.sentinel.jira
    if settings is None:
        return skipped(_NOT_CONFIGURED)
    token = f"put a token of {settings.email} in {context.describe_source('sentinel', 'jira', 'token')}"
    async with _calling(JiraApi(settings.url, settings.email, settings.token, CALL_LIMIT), "Jira") as api:
        myself = await api.ask("/rest/api/2/myself")
        if myself.status in (_UNAUTHORIZED, _FORBIDDEN):
            return fail(f"Jira rejects the token: {myself.status}", token)
        if not myself.ok or not _text(myself, "accountId"):
            return fail(f"Jira answered {myself.status} to GET /myself", "check sentinel.jira.url")
        found = await api.send("/rest/api/2/search/jql", {"jql": settings.jql, "maxResults": 1, "fields": ["id"]})
    if found.status == _BAD_REQUEST:
        return fail(f"Jira rejects the search {settings.jql!r}", "correct sentinel.jira.jql")
    if not found.ok:
        return fail(f"Jira answered {found.status} to a search", token)
    return ok(f"{_text(myself, 'displayName') or settings.email}; Jira accepts the search")


async def check_slack_bot(context: CheckContext) -> CheckResult:
    """Check the bot token of Slack and its scopes."""
    settings = context.realm.envoy.slack
    if settings is None:
        return skipped(_NOT_CONFIGURED)
    try:
        await run_in_thread(lambda: import_module("slack_bolt"))
    except ImportError:
        return fail("the Slack client is not installed", "pip install 'kingdom[slack]'")
    reply = await _call_slack(settings.base_url, settings.bot_token, "auth.test")
    if problem := _slack_problem(reply):
        token = context.describe_source("envoy", "slack", "bot_token")
        return fail(f"Slack rejects the bot token: {problem}", f"put the bot token of the app (xoxb-…) in {token}")
    scopes = frozenset(reply.headers.get("X-OAuth-Scopes", "").replace(" ", "").split(",")) - {""}
    if scopes and (missing := sorted(_SLACK_SCOPES - scopes)):
        found = f"the bot lacks the scopes {', '.join(missing)}"
        return fail(found, "add them under OAuth & Permissions of the app, and reinstall it")
    return ok(f"{_text(reply, 'user')} in {_text(reply, 'team')}")


async def check_slack_socket(context: CheckContext) -> CheckResult:
    """Request the address of a Slack socket, without connecting to it."""
    settings = context.realm.envoy.slack
    if settings is None:
        return skipped(_NOT_CONFIGURED)
    if not settings.app_token:
        found = "without envoy.slack.app_token Kingdom receives nothing from Slack"
        return warn(found, "create one with connections:write")
    reply = await _call_slack(settings.base_url, settings.app_token, "apps.connections.open")
    if problem := _slack_problem(reply):
        token = context.describe_source("envoy", "slack", "app_token")
        fix = f"switch Socket Mode on, and put an app-level token (xapp-…) with connections:write in {token}"
        return fail(f"Slack opens no socket: {problem}", fix)
    return ok("Slack answers apps.connections.open")


@asynccontextmanager
async def _calling(api: _Api, name: str) -> AsyncIterator[_Api]:
    """Close the client after the block; raise Unavailable if the service does not answer."""
    try:
        yield api
    except (Unreachable, aiohttp.ClientError, TimeoutError) as error:
        raise Unavailable(f"{name} does not answer at {api.url}: {describe_error(error)}") from error
    finally:
        await api.close()


async def _call_slack(url: str, token: str, method: str) -> HttpReply:
    async with _calling(HttpApi(url, {"Authorization": f"Bearer {token}"}, CALL_LIMIT), "Slack") as api:
        return await api.send(f"/{method}", {})


def _slack_problem(reply: HttpReply) -> str:
    if not reply.ok or not isinstance(reply.body, dict):
        return f"it answered {reply.status}"
    return "" if reply.body.get("ok") else str(reply.body.get("error") or "no reason was given")


def _missing_scopes(reply: HttpReply) -> list[str]:
    """Return the missing scopes of a classic token. GitHub does not list the scopes of other tokens."""
    if not (header := reply.headers.get("X-OAuth-Scopes")):
        return []
    scopes = {each.strip() for each in header.split(",")}
    sufficient = {"notifications": {"notifications", "repo"}, "repo": {"repo", "public_repo"}}
    return [name for name in _GITHUB_SCOPES if not sufficient[name] & scopes]


def _text(reply: HttpReply, field: str) -> str:
    return str(reply.body.get(field) or "") if isinstance(reply.body, dict) else ""
