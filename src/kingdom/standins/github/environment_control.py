"""The control interface for all but the actions of users: CI, permissions, Apps, webhooks and rate limits."""

import time
from typing import Any

import msgspec
from aiohttp import web

from kingdom.standins.github import actions
from kingdom.standins.github.action_context import ActionContext, find_issue
from kingdom.standins.github.api import base_of, body_of, format_time, limits_of
from kingdom.standins.github.apps.routes import add_app, install_app, installation_body
from kingdom.standins.github.checks.actions import (
    ACTIONS,
    CheckOutput,
    CheckStatus,
    Conclusion,
    NewStatus,
    StatusState,
    report_check,
    report_status,
)
from kingdom.standins.github.checks.bodies import run_body, status_body
from kingdom.standins.github.control import GithubAction, act_on
from kingdom.standins.github.webhooks import add_hook
from kingdom.standins.server import CONTROL, STATE_FILE


class ReportCheck(GithubAction, kw_only=True):
    """Report a check of a commit, by default of the head of a pull request. A conclusion completes the check."""

    number: int | None = None
    sha: str = ""
    name: str
    app: str = ACTIONS
    status: CheckStatus = "completed"
    conclusion: Conclusion | None = None
    output: CheckOutput = msgspec.field(default_factory=CheckOutput)
    log: str = ""


class ReportCommitStatus(GithubAction, kw_only=True):
    """Report a status of a commit, by default of the head of a pull request."""

    number: int | None = None
    sha: str = ""
    state: StatusState
    context: str = "default"
    description: str | None = None


class SetPermission(GithubAction, kw_only=True):
    """Set the permission of a user in a repository: admin, maintain, write, triage, read or none."""

    login: str
    permission: str


class ProtectBranches(GithubAction, kw_only=True):
    """Require checks and approvals for every merge."""

    checks: tuple[str, ...] = ()
    approvals: int = 0


class SetTeam(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Set the members of a team, whose name is ORGANIZATION/TEAM."""

    team: str
    members: list[str]


class AddApp(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Create an App with its public key."""

    id: int
    slug: str
    public_key: str
    events: list[str] = []


class InstallApp(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Install an App on an account, or change its installation there. Without `repositories`, it has access to all."""

    app: int
    account: str
    permissions: dict[str, str] = {}
    repositories: list[str] | None = None
    token_seconds: float = 3600.0
    suspended: bool = False


class AddHook(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Register a webhook, by default for all repositories, or for the repositories of an App."""

    url: str
    secret: str = ""
    repository: str | None = None
    events: tuple[str, ...] = ("*",)
    content_type: str = "json"
    app: int | None = None


class SecondaryRateLimit(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A secondary rate limit for the next `times` requests with a method."""

    times: int = 1
    retry_after: int | None = 60
    status: int = 403
    method: str = "*"


class RateLimitChange(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """New rate limits. Omitted values stay unchanged."""

    limit: int | None = None
    remaining: int | None = None
    reset_seconds: int | None = None
    status: int | None = None
    poll_interval: int | None = None
    secondary: SecondaryRateLimit | None = None


def _report_check(context: ActionContext, action: ReportCheck) -> dict[str, Any]:
    sha = action.sha or _head(context, action.repository, action.number)
    run = report_check(
        context,
        action.repository,
        sha,
        action.name,
        app=action.app,
        status=action.status,
        conclusion=action.conclusion,
        output=action.output,
        log=action.log,
    )
    return run_body(context.bodies, run)


def _report_status(context: ActionContext, action: ReportCommitStatus) -> dict[str, Any]:
    sha = action.sha or _head(context, action.repository, action.number)
    asked = NewStatus(state=action.state, context=action.context, description=action.description)
    return status_body(context.bodies, report_status(context, action.repository, sha, asked))


def _set_permission(context: ActionContext, action: SetPermission) -> dict[str, Any]:
    stored = context.state_file.state["repositories"][action.repository]
    stored["collaborators"][action.login] = action.permission
    return {"login": action.login, "permission": action.permission}


def _protect(context: ActionContext, action: ProtectBranches) -> dict[str, Any]:
    rules = {"checks": list(action.checks), "approvals": action.approvals}
    context.state_file.state["repositories"][action.repository]["protection"] = rules
    return rules


def _head(context: ActionContext, repository: str, number: int | None) -> str:
    pull = find_issue(context.state_file.state, repository, number or 0, pull=True)
    sha: str = pull["pull"]["head"]["sha"]
    return sha


async def _set_team(request: web.Request) -> web.Response:
    asked = await body_of(request, SetTeam)
    with request.app[STATE_FILE].change() as state:
        state["teams"][asked.team] = asked.members
    return web.json_response(msgspec.to_builtins(asked), status=201)


async def _add_app(request: web.Request) -> web.Response:
    asked, context = await body_of(request, AddApp), _context(request)
    with context.state_file.change():
        app = add_app(context, number=asked.id, slug=asked.slug, public_key=asked.public_key, events=asked.events)
    return web.json_response({"id": app["id"], "slug": app["slug"], "client_id": app["client_id"]}, status=201)


async def _install_app(request: web.Request) -> web.Response:
    asked, context = await body_of(request, InstallApp), _context(request)
    with context.state_file.change():
        for name in asked.repositories or ():
            actions.add_repository(context, name)
        stored = install_app(context, **msgspec.structs.asdict(asked))
    return web.json_response(installation_body(context.bodies, stored), status=201)


async def _add_hook(request: web.Request) -> web.Response:
    asked, context = await body_of(request, AddHook), _context(request)
    with context.state_file.change():
        if asked.repository:
            actions.add_repository(context, asked.repository)
        hook = add_hook(context, **msgspec.to_builtins(asked))
    return web.json_response(context.bodies.hook(hook), status=201)


async def _set_limits(request: web.Request) -> web.Response:
    asked = await body_of(request, RateLimitChange)
    limits_of(request.app[STATE_FILE])
    with request.app[STATE_FILE].change() as state:
        limits = state["limits"]
        for name in ("limit", "status", "poll_interval"):
            if getattr(asked, name) is not None:
                limits[name] = getattr(asked, name)
        if asked.remaining is not None:
            limits["used"] = limits["limit"] - asked.remaining
        if asked.reset_seconds is not None:
            limits["reset"] = int(time.time()) + asked.reset_seconds
        if asked.secondary:
            limits["secondary"] = msgspec.structs.asdict(asked.secondary)
    return web.json_response(limits)


def _context(request: web.Request) -> ActionContext:
    return ActionContext(application=request.app, base=base_of(request), by="octocat", at=format_time())


ROUTES = [
    web.post(f"{CONTROL}/check", act_on(ReportCheck, _report_check)),
    web.post(f"{CONTROL}/status", act_on(ReportCommitStatus, _report_status)),
    web.post(f"{CONTROL}/permission", act_on(SetPermission, _set_permission)),
    web.post(f"{CONTROL}/protection", act_on(ProtectBranches, _protect)),
    web.post(f"{CONTROL}/team", _set_team),
    web.post(f"{CONTROL}/app", _add_app),
    web.post(f"{CONTROL}/installation", _install_app),
    web.post(f"{CONTROL}/hook", _add_hook),
    web.post(f"{CONTROL}/limits", _set_limits),
]
