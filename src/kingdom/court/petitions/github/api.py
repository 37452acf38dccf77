"""Requests to GitHub, with REST and GraphQL, and the results of its replies."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from kingdom.bus.effects.effect import CallResult, Rejected, Throttled, Unknown
from kingdom.court.petitions.github.access import GithubAccess, TokenScope
from kingdom.court.petitions.http_api import LONGEST_CALL, REASON_MAX, HttpApi, call_result, require_body
from kingdom.court.remote_http import PAUSE, HttpReply, bearer, github_headers, next_page, requested_pause
from kingdom.court.sentinel.untrusted import clean_text
from kingdom.errors import Transient

NAME = "GitHub"
# The URL of an Enterprise Server's REST API ends with this, and its GraphQL API is beside it.
_REST_VERSION = "/v3"
_PAGE = 100
_PAGES_MAX = 100
_UNAUTHORIZED, _FORBIDDEN, _TOO_MANY = 401, 403, 429
# With these errors GraphQL has done nothing. With any other, it may have.
_REFUSALS = ("FORBIDDEN", "INSUFFICIENT_SCOPES", "NOT_FOUND", "UNPROCESSABLE")


class GraphqlFailed(Transient):
    """Raised if a GraphQL request failed, completely or in part. `result` says how to go on."""

    def __init__(self, result: Rejected | Throttled | Unknown) -> None:
        super().__init__(result.reason)
        self.result = result


class GithubApi(HttpApi):
    """GitHub's REST and GraphQL APIs. The authorization can differ from request to request."""

    def __init__(self, url: str, access: GithubAccess, longest_call: timedelta = LONGEST_CALL) -> None:
        super().__init__(url, github_headers(), longest_call)
        self._access = access

    async def every(self, path: str, **parameters: str | int) -> AsyncIterator[dict[str, Any]]:
        """Yield every item of a list, page by page."""
        reply = await self.ask(path, per_page=_PAGE, **parameters)
        for _ in range(_PAGES_MAX):
            for item in require_body(reply, list, NAME):
                yield item
            following = next_page(reply, self.url)
            if not following:
                return
            reply = await self.ask(following)
        raise Transient(f"the list {path} of {NAME} is too long to search")

    async def graphql(
        self, repository: str, permissions: Mapping[str, str], operation: str, variables: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Execute a GraphQL operation on a repository with these permissions, and return its data.

        Raise GraphqlFailed if a part of it fails.
        """
        body = msgspec.json.encode({"query": operation, "variables": variables})
        reply = await self._request(
            "POST",
            f"{self.url.removesuffix(_REST_VERSION)}/graphql",
            scope=TokenScope.of_permissions(repository, permissions),
            data=body,
            allow_redirects=False,
        )
        if failure := _graphql_failure(reply):
            raise GraphqlFailed(failure)
        data: dict[str, Any] = reply.body["data"]
        return data

    async def close(self) -> None:
        """Close all connections."""
        await self._access.close()
        await super().close()

    async def _request(self, method: str, path: str, scope: TokenScope | None = None, **options: Any) -> HttpReply:
        async def token() -> str:
            if scope:
                return await self._access.token_with(scope)
            return await self._access.token_for(method, path.removeprefix(self.url))

        # The limit of a call includes the request for its token.
        async with asyncio.timeout(self.longest_call.total_seconds()):
            first = await token()
            reply = await super()._request(method, path, headers=bearer(first), **options)
            if reply.status != _UNAUTHORIZED or not self._access.replaces(first):
                return reply
            # GitHub did nothing with a rejected token, so the request can be sent again.
            return await super()._request(method, path, headers=bearer(await token()), **options)


def response_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a petition stores of an item: its address, id and number."""
    return {name: item[key] for name, key in (("url", "html_url"), ("id", "id"), ("number", "number")) if key in item}


def github_result(reply: HttpReply) -> CallResult:
    """Return the result of a call to GitHub. GitHub also uses status 403 for rate limits."""
    message = error_message(reply)
    if reply.status in (_FORBIDDEN, _TOO_MANY) and (pause := _rate_limit_pause(reply, message)):
        return Throttled(pause, f"{NAME} answered {reply.status}: {message}")
    return call_result(reply, NAME, message, response_of(reply.body) if isinstance(reply.body, dict) else {})


def _rate_limit_pause(reply: HttpReply, message: str) -> timedelta | None:
    """Return how long to wait at a rate limit, or None if the request is forbidden."""
    limited = reply.status == _TOO_MANY or "rate limit" in message.lower()
    return requested_pause(reply.headers) or (PAUSE if limited else None)


def _graphql_failure(reply: HttpReply) -> Rejected | Throttled | Unknown | None:
    """Return why a GraphQL operation failed, or None. GraphQL answers with status 200 even if it fails."""
    if not reply.ok:
        failure = github_result(reply)
        return failure if isinstance(failure, Rejected | Throttled | Unknown) else Unknown(f"{NAME} sent no data")
    body = reply.body if isinstance(reply.body, dict) else {}
    errors = body.get("errors")
    if not errors and isinstance(body.get("data"), dict):
        return None
    kinds = {str(each.get("type")) for each in errors if isinstance(each, dict)} if isinstance(errors, list) else set()
    message = error_message(reply) or "no data"
    if "RATE_LIMITED" in kinds:
        return Throttled(requested_pause(reply.headers) or PAUSE, f"{NAME} answered: {message}")
    return Rejected(message) if kinds and kinds <= set(_REFUSALS) else Unknown(f"{NAME} answered: {message}")


def error_message(reply: HttpReply) -> str:
    """Return the error message of GitHub with its details."""
    if not isinstance(reply.body, dict):
        return ""
    details = reply.body.get("errors")
    parts = [reply.body.get("message"), *(details if isinstance(details, list) else [])]
    return clean_text(": ".join(_detail(part) for part in parts if part), REASON_MAX)


def _detail(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    text = part.get("message") or " ".join(str(part[name]) for name in ("resource", "field", "code") if name in part)
    return str(text)
