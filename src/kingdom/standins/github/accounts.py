"""Users, repositories and rate limits."""

from aiohttp import web

from kingdom.standins.github.api import base_of, limits_of, repository_of
from kingdom.standins.github.bodies import GithubBodies
from kingdom.standins.server import STATE_FILE

ROUTES = web.RouteTableDef()


@ROUTES.get("/user")
async def show_our_user(request: web.Request) -> web.Response:
    """Answer with our user."""
    state = request.app[STATE_FILE].state
    return web.json_response(GithubBodies(state, base_of(request)).user(state["login"]))


@ROUTES.get("/users/{login}")
async def show_user(request: web.Request) -> web.Response:
    """Answer with a user. Every login exists."""
    return web.json_response(GithubBodies({}, base_of(request)).user(request.match_info["login"]))


@ROUTES.get("/repos/{owner}/{name}")
async def show_repository(request: web.Request) -> web.Response:
    """Answer with a repository."""
    bodies = GithubBodies(request.app[STATE_FILE].state, base_of(request))
    return web.json_response(bodies.repository(repository_of(request)))


@ROUTES.get("/rate_limit")
async def show_limits(request: web.Request) -> web.Response:
    """Answer with the rate limits. This request does not count toward the limits."""
    limits = limits_of(request.app[STATE_FILE])
    core = {name: limits[name] for name in ("limit", "used", "reset")}
    core["remaining"] = limits["limit"] - limits["used"]
    return web.json_response({"resources": {"core": core}, "rate": core})
