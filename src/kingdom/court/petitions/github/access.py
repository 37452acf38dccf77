"""Authenticate at GitHub: with the token of a user, or as an installation of a GitHub App with narrowed tokens."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import aiohttp
import msgspec

from kingdom.clock import utc_now
from kingdom.court.petitions.http_api import LONGEST_CALL, REASON_MAX, HttpApi, NotAuthorized, Unreachable
from kingdom.court.remote_http import HttpReply, bearer, github_headers, requested_pause
from kingdom.court.sentinel.settings import GitHubAppSettings, GitHubSettings
from kingdom.court.sentinel.untrusted import clean_text
from kingdom.errors import Misconfigured, Transient, describe_error

# What reading a pull request needs: its reviews, labels, checks and statuses, the logs of failed jobs, and the
# permission of each reviewer.
FOLLOW_PERMISSIONS: Mapping[str, str] = {
    "metadata": "read",
    "actions": "read",
    "checks": "read",
    "issues": "read",
    "pull_requests": "read",
    "statuses": "read",
}
# What reading also needs if the people of `follow` include teams.
MEMBER_PERMISSIONS: Mapping[str, str] = {"members": "read"}
# What an installation must grant, so that every petition can be performed and its result can be found, and that pull
# requests can be followed.
APP_PERMISSIONS: Mapping[str, str] = {
    "metadata": "read",
    "actions": "read",
    "checks": "read",
    "contents": "write",
    "issues": "write",
    "pull_requests": "write",
    "statuses": "read",
}
# The webhooks that the Sentinel reads.
APP_EVENTS = (
    "check_run",
    "check_suite",
    "issue_comment",
    "issues",
    "pull_request",
    "pull_request_review",
    "pull_request_review_comment",
    "status",
)
# The permission of a path below a repository. Any other path needs only metadata.
_PERMISSIONS: Mapping[str, str] = {
    "actions": "actions",
    "check-runs": "checks",
    "check-suites": "checks",
    "compare": "contents",
    "git": "contents",
    "issues": "issues",
    "pulls": "pull_requests",
}
_LEVELS = ("none", "read", "write", "admin")
# A token is replaced this long before it ends, which is longer than any call.
_RENEWED_BEFORE = timedelta(minutes=5)
# A JSON web token is valid for at most ten minutes, and GitHub recommends allowing for a clock that is ahead.
_JWT_SECONDS_BEFORE, _JWT_SECONDS_AFTER = 60, 540
_CREATED, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _TOO_MANY, _SERVER_ERROR = 201, 401, 403, 404, 429, 500


class GithubAccess(ABC):
    """The authorization of requests to GitHub."""

    @abstractmethod
    async def token_for(self, method: str, path: str) -> str:
        """Return a token for a request. Raise NotAuthorized if GitHub grants none."""

    @abstractmethod
    async def token_with(self, scope: "TokenScope") -> str:
        """Return a token with a scope, for a request whose path does not show it."""

    @abstractmethod
    def replaces(self, token: str) -> bool:
        """Return whether another token replaces one that GitHub rejected."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""


class UserToken(GithubAccess):
    """The token of a user, which is the same for every request."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token_for(self, method: str, path: str) -> str:  # noqa: ARG002 - the same for every request
        """Return the token of the user."""
        return self._token

    async def token_with(self, scope: "TokenScope") -> str:  # noqa: ARG002 - the same for every request
        """Return the token of the user."""
        return self._token

    def replaces(self, token: str) -> bool:  # noqa: ARG002 - the same for every token
        """Return False: a rejected token stays rejected."""
        return False

    async def close(self) -> None:
        """Do nothing: it has no connections."""


class TokenScope(msgspec.Struct, frozen=True):
    """What a token is narrowed to: one repository, and the permissions of one kind of request."""

    repository: str
    permissions: tuple[tuple[str, str], ...]

    @classmethod
    def of_request(cls, method: str, path: str) -> "TokenScope":
        """Return the scope that a request needs. Raise NotAuthorized if it is not about a repository."""
        match path.partition("?")[0].split("/"):
            case ["", "repos", owner, name, *rest] if owner and name:
                permission = _PERMISSIONS.get(rest[0], "metadata") if rest else "metadata"
                level = "read" if method == "GET" else "write"
                granted = {permission: "read" if permission == "metadata" else level}
                return cls.of_permissions(f"{owner}/{name}", granted)
        raise NotAuthorized(f"a GitHub App cannot send {method} {path}, which is not about a repository")

    @classmethod
    def of_permissions(cls, repository: str, permissions: Mapping[str, str]) -> "TokenScope":
        """Return a scope with these permissions."""
        return cls(repository, tuple(sorted(permissions.items())))

    def __str__(self) -> str:
        return " or ".join(f"{name}={level}" for name, level in self.permissions)


@dataclass(frozen=True, slots=True)
class _InstallationToken:
    text: str
    ends_at: datetime


class _AppApi(HttpApi):
    """Requests of an App itself, which signs each of them."""

    def __init__(self, url: str, settings: GitHubAppSettings, longest_call: timedelta) -> None:
        super().__init__(url, github_headers(), longest_call)
        self._settings = settings

    async def _request(self, method: str, path: str, **options: Any) -> HttpReply:
        return await super()._request(method, path, headers=bearer(_sign(self._settings)), **options)


class AppInstallation(GithubAccess):
    """An installation of a GitHub App. It requests a token for each scope, and replaces it before it ends."""

    def __init__(
        self,
        url: str,
        settings: GitHubAppSettings,
        longest_call: timedelta = LONGEST_CALL,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.url = url
        self._api = _AppApi(url, settings, longest_call)
        self._settings = settings
        self._clock = clock
        self._tokens: dict[TokenScope, _InstallationToken] = {}
        self._lock = asyncio.Lock()

    async def token_for(self, method: str, path: str) -> str:
        """Return a token that is narrowed to the repository and the permission of a request."""
        return await self.token_with(TokenScope.of_request(method, path))

    async def token_with(self, scope: TokenScope) -> str:
        """Return a token with a scope, which is requested if there is none yet."""
        async with self._lock:
            token = self._tokens.get(scope)
            if token is None or token.ends_at - _RENEWED_BEFORE <= self._clock():
                token = self._tokens[scope] = await self._request_token(scope)
        return token.text

    def replaces(self, token: str) -> bool:
        """Forget a token that GitHub rejected, and return True."""
        self._tokens = {scope: each for scope, each in self._tokens.items() if each.text != token}
        return True

    async def show(self, path: str = "") -> HttpReply:
        """Return the reply to a request about the App itself, below `/app`."""
        return await self._api.ask(f"/app{path}")

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    async def _request_token(self, scope: TokenScope) -> _InstallationToken:
        path = f"/app/installations/{self._settings.installation}/access_tokens"
        body = {"repositories": [scope.repository.partition("/")[2]], "permissions": dict(scope.permissions)}
        try:
            reply = await self._api.send(path, body)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(f"no token was received: {describe_error(error)}") from error
        if reply.status != _CREATED:
            raise self._refusal(reply, scope)
        try:
            token = msgspec.convert(reply.body, _TokenReply)
        except msgspec.ValidationError as error:
            raise Unreachable("the reply to a request for a token cannot be read") from error
        return _InstallationToken(token.token, token.expires_at)

    def _refusal(self, reply: HttpReply, scope: TokenScope) -> Transient:
        """Return the error for a token that GitHub did not grant."""
        pause = requested_pause(reply.headers)
        if reply.status in (_FORBIDDEN, _TOO_MANY) and pause:
            return Unreachable(f"GitHub limits requests for tokens for {pause.total_seconds():.0f} s")
        if reply.status >= _SERVER_ERROR:
            return Unreachable(f"GitHub answered {reply.status} to a request for a token")
        return NotAuthorized(f"{self._refusal_reason(reply.status, scope)} (GitHub answered {_answer(reply)})")

    def _refusal_reason(self, status: int, scope: TokenScope) -> str:
        app, installation = self._settings.id, self._settings.installation
        if status == _UNAUTHORIZED:
            return f"GitHub rejects the key of the App {app}: put a private key of it in sentinel.github.app.key"
        if status == _NOT_FOUND:
            return f"the App {app} has no installation {installation}: correct sentinel.github.app.installation"
        return (
            f"the installation {installation} of the App {app} grants no {scope} for"
            f" {scope.repository}: grant it in the settings of the App, and accept it in those of the installation"
        )


def github_access(settings: GitHubSettings, longest_call: timedelta = LONGEST_CALL) -> GithubAccess:
    """Return the authorization of the settings: the App if there is one, otherwise the token."""
    if settings.app:
        return AppInstallation(settings.api_url, settings.app, longest_call)
    return UserToken(settings.token)


def missing_permissions(granted: Mapping[str, Any]) -> list[str]:
    """Return the permissions that Kingdom needs and an installation does not grant, such as `issues=write`."""
    return [
        f"{name}={level}"
        for name, level in APP_PERMISSIONS.items()
        if _LEVELS.index(level) > _level_number(granted.get(name))
    ]


def _level_number(level: Any) -> int:
    return _LEVELS.index(level) if level in _LEVELS else 0


class _TokenReply(msgspec.Struct):
    token: str
    expires_at: datetime


def _sign(settings: GitHubAppSettings) -> str:
    """Return a JSON web token of an App."""
    try:
        import jwt  # noqa: PLC0415 - part of an extra
    except ImportError as error:
        raise Misconfigured("a GitHub App needs its library: pip install 'kingdom[github-app]'") from error
    now = int(time.time())
    claims = {"iat": now - _JWT_SECONDS_BEFORE, "exp": now + _JWT_SECONDS_AFTER, "iss": str(settings.id)}
    try:
        return jwt.encode(claims, settings.key, algorithm="RS256")
    except (ValueError, TypeError, jwt.InvalidKeyError) as error:
        # The message of the library could contain the key.
        raise NotAuthorized("sentinel.github.app.key is not a private key in PEM format") from error


def _answer(reply: HttpReply) -> str:
    message = reply.body.get("message") if isinstance(reply.body, dict) else ""
    return f"{reply.status}: {clean_text(str(message or 'no reason'), REASON_MAX)}"
