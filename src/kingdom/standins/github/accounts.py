"""Users, repositories and rate limits."""

from aiohttp import web

from kingdom.standins.github.api import base_of, caller_of, limits_of, not_found, repository_of
from kingdom.standins.github.bodies import GithubBodies
from kingdom.standins.server import STATE_FILE

ROUTES = web.RouteTableDef()


@ROUTES.get("/user")
async def show_our_user(request: web.Request) -> web.Response:
    """Answer with our user."""
    state = request.app[STATE_FILE].state
    return web.json_response(GithubBodies(state, base_of(request)).user(caller_of(request).login))


@ROUTES.get("/users/{login}")
async def show_user(request: web.Request) -> web.Response:
    """Answer with a user. Every login exists."""
    return web.json_response(GithubBodies({}, base_of(request)).user(request.match_info["login"]))


@ROUTES.get("/repos/{owner}/{name}")
async def show_repository(request: web.Request) -> web.Response:
    """Answer with a repository."""
    bodies = GithubBodies(request.app[STATE_FILE].state, base_of(request))
    return web.json_response(bodies.repository(repository_of(request)))


@ROUTES.get("/repos/{owner}/{name}/collaborators/{login}/permission")
async def show_permission(request: web.Request) -> web.Response:
    """Answer with the permission of a user: that of a collaborator, admin for the owner, otherwise read or none."""
    name, login = repository_of(request), request.match_info["login"]
    state = request.app[STATE_FILE].state
    stored = state["repositories"][name]
    outsider = "none" if stored["private"] else "read"
    roles = {name.partition("/")[0].lower(): "admin"} | {
        each.lower(): role for each, role in stored.get("collaborators", {}).items()
    }
    role = roles.get(login.lower(), outsider)
    # GitHub reports its newer roles under the names of the older ones.
    permission = {"maintain": "write", "triage": "read"}.get(role, role)
    user = GithubBodies(state, base_of(request)).user(login)
    return web.json_response({"permission": permission, "role_name": role, "user": user})


@ROUTES.get("/orgs/{organization}/teams/{team}/memberships/{login}")
async def show_membership(request: web.Request) -> web.Response:
    """Answer with the membership of a user in a team."""
    info, state = request.match_info, request.app[STATE_FILE].state
    members = state["teams"].get(f"{info['organization']}/{info['team']}", [])
    if info["login"].lower() not in (each.lower() for each in members):
        raise not_found()
    return web.json_response({"state": "active", "role": "member"})


@ROUTES.get("/rate_limit")
async def show_limits(request: web.Request) -> web.Response:
    """Answer with the rate limits. This request does not count toward the limits."""
    limits = limits_of(request.app[STATE_FILE])
    core = {name: limits[name] for name in ("limit", "used", "reset")}
    core["remaining"] = limits["limit"] - limits["used"]
    return web.json_response({"resources": {"core": core}, "rate": core})
