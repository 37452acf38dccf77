"""The permissions that requests of an App need. A request that is not listed here is refused to Apps."""

from collections.abc import Mapping

from aiohttp import web

from kingdom.standins.github.api import GithubCaller, GithubRefusal
from kingdom.standins.server import STATE_FILE

_LEVELS = ("none", "read", "write", "admin")
_REPOSITORY = "/repos/{owner}/{name}"
# The longest prefix of a path after the repository decides. A GET needs to read, other methods need to write.
_PERMISSIONS: Mapping[str, str] = {
    "": "metadata",
    "/actions": "actions",
    "/branches": "contents",
    "/check-runs": "checks",
    "/check-suites": "checks",
    "/collaborators": "metadata",
    "/commits/{ref}": "contents",
    "/commits/{ref}/check-runs": "checks",
    "/commits/{ref}/check-suites": "checks",
    "/commits/{ref}/status": "statuses",
    "/compare": "contents",
    "/git": "contents",
    "/hooks": "repository_hooks",
    "/issues": "issues",
    "/pulls": "pull_requests",
    "/pulls/{number}/merge": "contents",
    "/statuses": "statuses",
}
_OF_APPS = ("/app", _REPOSITORY + "/installation")
_OF_INSTALLATIONS = ("/installation/", "/users/{login}", "/rate_limit", "/graphql", "/orgs/")
_REFUSAL = "Resource not accessible by integration"


def check_access(request: web.Request, caller: GithubCaller) -> None:
    """Raise GithubRefusal if a caller may not send a request."""
    resource = request.match_info.route.resource
    path = resource.canonical if resource else ""
    if path.startswith(_OF_APPS):
        if caller.app is None or caller.installation is not None:
            raise GithubRefusal(401, "A JSON web token could not be decoded")
        return
    if caller.permissions is None or not path:
        return
    if caller.installation is None:
        raise GithubRefusal(401, "Bad credentials")
    if path.startswith("/orgs/"):
        require(caller, "members", "read")
    elif not path.startswith(_OF_INSTALLATIONS):
        _check_repository_permission(request, caller, path)


def require(caller: GithubCaller, permission: str, level: str) -> None:
    """Raise GithubRefusal if a caller lacks a permission."""
    if caller.permissions is not None and not _has(caller, permission, level):
        headers = {"X-Accepted-GitHub-Permissions": f"{permission}={level}"}
        raise GithubRefusal(403, _REFUSAL, headers=headers)


def is_granted(granted: Mapping[str, str], asked: Mapping[str, str]) -> bool:
    """Return whether all permissions that are asked for are granted."""
    return all(_LEVELS.index(level) <= _LEVELS.index(granted.get(name, "none")) for name, level in asked.items())


def permission_of(path: str) -> str | None:
    """Return the permission that a path needs, or None if it is not open to installations."""
    rest = path.removeprefix(_REPOSITORY)
    if rest == path:
        return None
    found = [each for each in _PERMISSIONS if (rest.startswith(each) if each else not rest)]
    return _PERMISSIONS[max(found, key=len)] if found else None


def _check_repository_permission(request: web.Request, caller: GithubCaller, path: str) -> None:
    permission, level = permission_of(path), "read" if request.method == "GET" else "write"
    if permission is None:
        raise GithubRefusal(403, _REFUSAL)
    if permission == "issues" and _is_pull_request(request) and _has(caller, "pull_requests", level):
        return
    require(caller, permission, level)


def _is_pull_request(request: web.Request) -> bool:
    """Return whether a request for an issue or a comment is about a pull request."""
    info, state = request.match_info, request.app[STATE_FILE].state
    name, number = f"{info['owner']}/{info['name']}", info.get("number", "")
    if "id" in info:
        number = next((str(each["number"]) for each in state["comments"] if str(each["id"]) == info["id"]), "")
    issue = state["issues"].get(name, {}).get(number)
    return bool(issue and issue["pull"])


def _has(caller: GithubCaller, permission: str, level: str) -> bool:
    return is_granted(caller.permissions or {}, {permission: level})
