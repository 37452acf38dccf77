"""Authenticate requests: the token of our user, the JSON web token of an App, or the token of an installation."""

import hashlib
import time
from typing import Any

from aiohttp import web

from kingdom.standins.github.api import TOKEN, GithubCaller, GithubRefusal
from kingdom.standins.github.apps.permissions import check_access
from kingdom.standins.server import STATE_FILE

_LONGEST_JWT_SECONDS = 600
# How much the clock of a client may be ahead.
_CLOCK_DIFFERENCE_SECONDS = 60
_BAD = "Bad credentials"


def authenticate(request: web.Request) -> GithubCaller:
    """Return who sent a request, or raise GithubRefusal if they are unknown or lack a permission."""
    given = request.headers.get("Authorization", "")
    if not given:
        raise GithubRefusal(401, "Requires authentication")
    scheme, _, token = given.partition(" ")
    if scheme.lower() not in ("bearer", "token"):
        raise GithubRefusal(401, _BAD)
    caller = _caller(request, token.strip())
    check_access(request, caller)
    return caller


def hash_of(token: str) -> str:
    """Return the form in which the state contains a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def _caller(request: web.Request, token: str) -> GithubCaller:
    state = request.app[STATE_FILE].state
    if token == request.app[TOKEN]:
        return GithubCaller(login=state["login"])
    if token.count(".") == 2:  # noqa: PLR2004 - the three parts of a JSON web token
        return _app_caller(state, token)
    return _installation_caller(state, token)


def _app_caller(state: dict[str, Any], token: str) -> GithubCaller:
    # PyJWT is part of an extra.
    import jwt  # noqa: PLC0415 - see above

    try:
        issuer = str(jwt.decode(token, options={"verify_signature": False}).get("iss"))
        app = next(each for each in state["apps"] if issuer in (str(each["id"]), each["client_id"]))
        claims = jwt.decode(
            token,
            app["public_key"],
            algorithms=["RS256"],
            leeway=_CLOCK_DIFFERENCE_SECONDS,
            options={"require": ["exp", "iat", "iss"], "verify_exp": False},
        )
    except StopIteration as error:
        raise GithubRefusal(401, "Integration not found") from error
    except jwt.InvalidTokenError as error:
        raise GithubRefusal(401, "A JSON web token could not be decoded") from error
    now = time.time()
    if claims["exp"] <= now:
        message = "'Expiration time' claim ('exp') must be a numeric value representing the future time"
        raise GithubRefusal(401, f"{message} at which the assertion expires")
    if claims["exp"] > now + _LONGEST_JWT_SECONDS + _CLOCK_DIFFERENCE_SECONDS:
        raise GithubRefusal(401, "'Expiration time' claim ('exp') is too far in the future")
    return GithubCaller(login=f"{app['slug']}[bot]", app=app["slug"], permissions={})


def _installation_caller(state: dict[str, Any], token: str) -> GithubCaller:
    stored = state["tokens"].get(hash_of(token))
    if stored is None or stored["expires"] <= time.time():
        raise GithubRefusal(401, _BAD)
    installation = next(each for each in state["installations"] if each["id"] == stored["installation"])
    if installation["suspended"]:
        raise GithubRefusal(403, "This installation has been suspended")
    app = next(each for each in state["apps"] if each["id"] == installation["app"])
    return GithubCaller(
        login=f"{app['slug']}[bot]",
        app=app["slug"],
        installation=installation["id"],
        permissions=stored["permissions"],
        repositories=stored["repositories"],
    )
