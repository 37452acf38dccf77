"""Git refs and their commits."""

import re
from typing import Any

import msgspec
from aiohttp import web

from kingdom.standins.github.action_context import our_context
from kingdom.standins.github.api import GithubRefusal, base_of, body_of, not_found, repository_of
from kingdom.standins.server import STATE_FILE

ROUTES = web.RouteTableDef()
_GIT = "/repos/{owner}/{name}/git"
_REF = re.compile(r"refs/[^/\s]+/\S+")
_SHA = re.compile(r"[0-9a-f]{40}")
# The only commit that does not exist. Every other commit counts as pushed.
_NO_COMMIT = "0" * 40


class _NewRef(msgspec.Struct):
    ref: str = ""
    sha: str = ""


def commit_of_ref(state: dict[str, Any], repository: str, ref: str) -> str | None:
    """Return the commit of a ref, or None if the ref does not exist."""
    sha: str | None = state.get("refs", {}).get(repository, {}).get(ref)
    return sha


@ROUTES.post(_GIT + "/refs")
async def create_ref(request: web.Request) -> web.Response:
    """Create a ref to a pushed commit."""
    name, asked = repository_of(request), await body_of(request, _NewRef)
    if not _REF.fullmatch(asked.ref):
        raise GithubRefusal(422, "Reference name must start with 'refs/' and have at least two slashes.")
    if not _SHA.fullmatch(asked.sha):
        raise GithubRefusal(422, "The sha parameter must be exactly 40 characters and contain only [0-9a-f].")
    if commit_of_ref(request.app[STATE_FILE].state, name, asked.ref):
        raise GithubRefusal(422, "Reference already exists")
    if asked.sha == _NO_COMMIT:
        raise GithubRefusal(422, "Object does not exist")
    state_file = our_context(request).state_file
    with state_file.change("POST git ref", repository=name, ref=asked.ref, sha=asked.sha) as state:
        state.setdefault("refs", {}).setdefault(name, {})[asked.ref] = asked.sha
    return web.json_response(_body(request, name, asked.ref, asked.sha), status=201)


@ROUTES.get(_GIT + "/ref/{ref:.+}")
async def show_ref(request: web.Request) -> web.Response:
    """Answer with a ref."""
    name, ref = repository_of(request), f"refs/{request.match_info['ref']}"
    sha = commit_of_ref(request.app[STATE_FILE].state, name, ref)
    if sha is None:
        raise not_found()
    return web.json_response(_body(request, name, ref, sha))


def _body(request: web.Request, repository: str, ref: str, sha: str) -> dict[str, Any]:
    base = f"{base_of(request)}/repos/{repository}/git"
    commit = {"type": "commit", "sha": sha, "url": f"{base}/commits/{sha}"}
    return {"ref": ref, "node_id": f"REF_{sha[:12]}", "url": f"{base}/{ref}", "object": commit}
