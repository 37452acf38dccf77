"""The requests of Apps: who they are, where they are installed, and tokens of their installations."""

import secrets
import time
from datetime import UTC, datetime
from typing import Any

import msgspec
from aiohttp import web

from kingdom.standins.github.action_context import ActionContext
from kingdom.standins.github.api import (
    GithubRefusal,
    base_of,
    body_of,
    caller_of,
    format_time,
    not_found,
    page_of,
    repository_of,
)
from kingdom.standins.github.apps.authentication import hash_of
from kingdom.standins.github.apps.permissions import is_granted
from kingdom.standins.github.bodies import GithubBodies
from kingdom.standins.server import STATE_FILE

ROUTES = web.RouteTableDef()
_INSTALLATION = r"/app/installations/{id:\d+}"


class _TokenRequest(msgspec.Struct):
    permissions: dict[str, str] | None = None
    repositories: list[str] | None = None
    repository_ids: list[int] | None = None


def add_app(context: ActionContext, *, number: int, slug: str, public_key: str, events: list[str]) -> dict[str, Any]:
    """Create an App, or replace the one with this number."""
    about = {"slug": slug, "public_key": public_key, "events": events, "client_id": f"Iv1.{number:016x}"}
    app = {"id": number, **about, "created_at": context.at}
    apps = context.state_file.state["apps"]
    apps[:] = [each for each in apps if each["id"] != number] + [app]
    return app


def install_app(
    context: ActionContext,
    *,
    app: int,
    account: str,
    permissions: dict[str, str],
    repositories: list[str] | None,
    token_seconds: float,
    suspended: bool,
) -> dict[str, Any]:
    """Install an App on an account, or change its installation there."""
    installations = context.state_file.state["installations"]
    place = {"app": app, "account": account}
    stored = next((each for each in installations if place.items() <= each.items()), None)
    if stored is None:
        stored = {"id": context.state_file.next_number("id"), **place, "created_at": context.at}
        installations.append(stored)
    stored.update(permissions={"metadata": "read", **permissions}, repositories=repositories)
    stored.update(token_seconds=token_seconds, suspended=suspended)
    return stored


def installation_body(bodies: GithubBodies, stored: dict[str, Any]) -> dict[str, Any]:
    """Return an installation."""
    app = next(each for each in bodies.state["apps"] if each["id"] == stored["app"])
    return {
        "id": stored["id"],
        "account": bodies.user(stored["account"]),
        "app_id": app["id"],
        "app_slug": app["slug"],
        "client_id": app["client_id"],
        "target_type": "Organization",
        "repository_selection": "all" if stored["repositories"] is None else "selected",
        "permissions": stored["permissions"],
        "events": app["events"],
        "access_tokens_url": f"{bodies.base}/app/installations/{stored['id']}/access_tokens",
        "repositories_url": f"{bodies.base}/installation/repositories",
        "created_at": stored["created_at"],
        "updated_at": stored["created_at"],
        "suspended_at": stored["created_at"] if stored["suspended"] else None,
    }


@ROUTES.get("/app")
async def show_app(request: web.Request) -> web.Response:
    """Answer with the App that asks."""
    app, bodies = _app_of(request), _bodies(request)
    installed = [each for each in bodies.state["installations"] if each["app"] == app["id"]]
    body = {name: app[name] for name in ("id", "slug", "client_id", "events", "created_at")}
    body |= {"name": app["slug"], "node_id": f"A_{app['id']}", "owner": bodies.user("github"), "description": None}
    body |= {"permissions": installed[0]["permissions"] if installed else {}, "installations_count": len(installed)}
    page = f"{bodies.base}/apps/{app['slug']}"
    return web.json_response(body | {"html_url": page, "external_url": page, "updated_at": app["created_at"]})


@ROUTES.get("/app/installations")
async def list_installations(request: web.Request) -> web.Response:
    """Answer with the installations of the App."""
    app, bodies = _app_of(request), _bodies(request)
    installed = [each for each in bodies.state["installations"] if each["app"] == app["id"]]
    return page_of(request, installed, lambda stored: installation_body(bodies, stored))


@ROUTES.get(_INSTALLATION)
async def show_installation(request: web.Request) -> web.Response:
    """Answer with one installation of the App."""
    return web.json_response(installation_body(_bodies(request), _installation_of(request)))


@ROUTES.get("/repos/{owner}/{name}/installation")
async def show_installation_of_repository(request: web.Request) -> web.Response:
    """Answer with the installation of the App that has access to a repository."""
    name, app, bodies = repository_of(request), _app_of(request), _bodies(request)
    for stored in bodies.state["installations"]:
        if stored["app"] == app["id"] and name in _repositories(bodies.state, stored):
            return web.json_response(installation_body(bodies, stored))
    raise not_found()


@ROUTES.post(_INSTALLATION + "/access_tokens")
async def create_token(request: web.Request) -> web.Response:
    """Create a token of an installation, for only some repositories and permissions if the App asks for that."""
    asked, stored, bodies = await body_of(request, _TokenRequest), _installation_of(request), _bodies(request)
    if stored["suspended"]:
        raise GithubRefusal(403, "This installation has been suspended")
    if not is_granted(stored["permissions"], asked.permissions or {}):
        raise GithubRefusal(422, "The permissions requested are not granted to this installation.")
    accessible, chosen = _repositories(bodies.state, stored), _chosen(bodies.state, stored, asked)
    if not set(chosen or ()) <= set(accessible):
        message = (
            "There is at least one repository that does not exist or is not accessible to the parent installation."
        )
        raise GithubRefusal(422, message)
    permissions = {"metadata": "read", **(asked.permissions or stored["permissions"])}
    expires = time.time() + stored["token_seconds"]
    token = f"ghs_{secrets.token_hex(18)}"
    details = {"installation": stored["id"], "permissions": permissions, "repositories": chosen}
    with request.app[STATE_FILE].change("POST access token", **details) as state:
        live = {key: each for key, each in state["tokens"].items() if each["expires"] > time.time()}
        new = {"installation": stored["id"], "permissions": permissions, "expires": expires}
        state["tokens"] = {**live, hash_of(token): {**new, "repositories": accessible if chosen is None else chosen}}
    # GitHub rounds down to seconds.
    body = {"token": token, "expires_at": format_time(datetime.fromtimestamp(expires, UTC)), "permissions": permissions}
    body["repository_selection"] = "selected" if chosen is not None or stored["repositories"] else "all"
    body |= {"repositories": [bodies.repository(name) for name in chosen]} if chosen is not None else {}
    return web.json_response(body, status=201)


@ROUTES.get("/installation/repositories")
async def list_repositories(request: web.Request) -> web.Response:
    """Answer with the repositories that a token has access to."""
    names, bodies = sorted(caller_of(request).repositories or ()), _bodies(request)
    shown = [bodies.repository(name) for name in names]
    return web.json_response({"total_count": len(names), "repositories": shown})


@ROUTES.delete("/installation/token")
async def revoke_token(request: web.Request) -> web.Response:
    """Revoke the token of the request."""
    token = request.headers["Authorization"].partition(" ")[2].strip()
    with request.app[STATE_FILE].change("DELETE installation token") as state:
        state["tokens"].pop(hash_of(token), None)
    return web.Response(status=204)


def _app_of(request: web.Request) -> dict[str, Any]:
    slug = caller_of(request).app
    apps: list[dict[str, Any]] = request.app[STATE_FILE].state["apps"]
    return next(each for each in apps if each["slug"] == slug)


def _installation_of(request: web.Request) -> dict[str, Any]:
    app, number = _app_of(request), int(request.match_info["id"])
    installations: list[dict[str, Any]] = request.app[STATE_FILE].state["installations"]
    for stored in installations:
        if (stored["app"], stored["id"]) == (app["id"], number):
            return stored
    raise not_found()


def _repositories(state: dict[str, Any], stored: dict[str, Any]) -> list[str]:
    """Return the repositories that an installation has access to."""
    owned = [name for name in state["repositories"] if name.partition("/")[0] == stored["account"]]
    return [name for name in owned if stored["repositories"] is None or name in stored["repositories"]]


def _chosen(state: dict[str, Any], stored: dict[str, Any], asked: _TokenRequest) -> list[str] | None:
    """Return the repositories that a token is narrowed to, or None for all."""
    if asked.repositories is None and asked.repository_ids is None:
        return None
    names = [f"{stored['account']}/{name}" for name in asked.repositories or ()]
    by_id = {each["id"]: name for name, each in state["repositories"].items()}
    return names + [by_id.get(number, f"unknown/{number}") for number in asked.repository_ids or ()]


def _bodies(request: web.Request) -> GithubBodies:
    return GithubBodies(request.app[STATE_FILE].state, base_of(request))
