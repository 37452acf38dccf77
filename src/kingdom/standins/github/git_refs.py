"""Git refs and their commits."""

import re
from typing import Any

import msgspec
from aiohttp import web

from kingdom.standins.github.action_context import ActionContext, our_context
from kingdom.standins.github.actions import move_branch
from kingdom.standins.github.api import GithubRefusal, base_of, body_of, not_found, page_of, repository_of
from kingdom.standins.github.commits import commit_of_ref, has_commit, is_fast_forward, refs_of, set_ref
from kingdom.standins.server import STATE_FILE

ROUTES = web.RouteTableDef()
_GIT = "/repos/{owner}/{name}/git"
_BRANCHES = "refs/heads/"
_REF = re.compile(r"refs/[^/\s]+/\S+")
_SHA = re.compile(r"[0-9a-f]{40}")


class _NewRef(msgspec.Struct):
    ref: str = ""
    sha: str = ""


class _RefUpdate(msgspec.Struct):
    sha: str = ""
    force: bool = False


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
    if not has_commit(request.app[STATE_FILE].state, name, asked.sha):
        raise GithubRefusal(422, "Object does not exist")
    with our_context(request).state_file.change("POST git ref", repository=name, ref=asked.ref, sha=asked.sha) as state:
        set_ref(state, name, asked.ref, asked.sha)
    return web.json_response(_body(request, name, asked.ref, asked.sha), status=201)


@ROUTES.get(_GIT + "/ref/{ref:.+}")
async def show_ref(request: web.Request) -> web.Response:
    """Answer with a ref."""
    name, ref = repository_of(request), f"refs/{request.match_info['ref']}"
    sha = commit_of_ref(request.app[STATE_FILE].state, name, ref)
    if sha is None:
        raise not_found()
    return web.json_response(_body(request, name, ref, sha))


@ROUTES.get(_GIT + "/matching-refs/{prefix:.*}")
async def list_refs(request: web.Request) -> web.Response:
    """Answer with the refs whose names begin with a prefix."""
    name = repository_of(request)
    found = refs_of(request.app[STATE_FILE].state, name, f"refs/{request.match_info['prefix']}")
    return page_of(request, list(found.items()), lambda ref: _body(request, name, *ref))


@ROUTES.patch(_GIT + "/refs/{ref:.+}")
async def update_ref(request: web.Request) -> web.Response:
    """Point a ref to another commit, which must contain the former one unless `force` is set."""
    name, ref, asked = repository_of(request), f"refs/{request.match_info['ref']}", await body_of(request, _RefUpdate)
    context = our_context(request)
    with context.state_file.change("PATCH git ref", repository=name, ref=ref, sha=asked.sha):
        move_ref(context, name, ref, asked.sha, force=asked.force)
    return web.json_response(_body(request, name, ref, asked.sha))


@ROUTES.delete(_GIT + "/refs/{ref:.+}")
async def delete_ref(request: web.Request) -> web.Response:
    """Delete a ref."""
    name, ref, context = repository_of(request), f"refs/{request.match_info['ref']}", our_context(request)
    before = commit_of_ref(context.state_file.state, name, ref)
    if before is None:
        raise GithubRefusal(422, "Reference does not exist")
    with context.state_file.change("DELETE git ref", repository=name, ref=ref) as state:
        _announce(context, name, ref, before, None)
        set_ref(state, name, ref, None)
    return web.Response(status=204)


@ROUTES.get("/repos/{owner}/{name}/branches/{branch:.+}")
async def show_branch(request: web.Request) -> web.Response:
    """Answer with a branch and its commit."""
    name, branch = repository_of(request), request.match_info["branch"]
    sha = commit_of_ref(request.app[STATE_FILE].state, name, f"refs/heads/{branch}")
    if sha is None:
        raise GithubRefusal(404, "Branch not found")
    commit = {"sha": sha, "url": f"{base_of(request)}/repos/{name}/commits/{sha}"}
    return web.json_response({"name": branch, "commit": commit, "protected": False})


@ROUTES.get("/repos/{owner}/{name}/compare/{base}...{head}")
async def compare(request: web.Request) -> web.Response:
    """Answer whether the second commit contains the first one."""
    name, state = repository_of(request), request.app[STATE_FILE].state
    base, head = (resolve(state, name, request.match_info[each]) for each in ("base", "head"))
    if not all(has_commit(state, name, each) for each in (base, head)):
        raise not_found()
    status = "identical" if base == head else "diverged"
    if base != head and is_fast_forward(state, name, base, head):
        status = "ahead"
    elif base != head and is_fast_forward(state, name, head, base):
        status = "behind"
    return web.json_response({"status": status, "base_commit": {"sha": base}, "files": [], "commits": []})


def resolve(state: dict[str, Any], repository: str, name: str) -> str:
    """Return the commit of a branch or a tag, or the name itself, which is then a commit."""
    named = (commit_of_ref(state, repository, f"refs/{kind}/{name}") for kind in ("heads", "tags"))
    return next((sha for sha in named if sha), name)


def move_ref(context: ActionContext, repository: str, ref: str, sha: str, *, force: bool) -> None:
    """Point an existing ref to another commit, and announce it if it is a branch. Call it inside `StateFile.change`."""
    state = context.state_file.state
    before = commit_of_ref(state, repository, ref)
    if before is None:
        raise GithubRefusal(422, "Reference does not exist")
    if not has_commit(state, repository, sha):
        raise GithubRefusal(422, "Object does not exist")
    if not force and not is_fast_forward(state, repository, before, sha):
        raise GithubRefusal(422, "Update is not a fast forward")
    if before != sha:
        set_ref(state, repository, ref, sha)
        _announce(context, repository, ref, before, sha)


def _announce(context: ActionContext, repository: str, ref: str, before: str, after: str | None) -> None:
    if ref.startswith(_BRANCHES):
        move_branch(context, repository, ref.removeprefix(_BRANCHES), before, after)


def _body(request: web.Request, repository: str, ref: str, sha: str) -> dict[str, Any]:
    base = f"{base_of(request)}/repos/{repository}/git"
    commit = {"type": "commit", "sha": sha, "url": f"{base}/commits/{sha}"}
    return {"ref": ref, "node_id": f"REF_{sha[:12]}", "url": f"{base}/{ref}", "object": commit}
