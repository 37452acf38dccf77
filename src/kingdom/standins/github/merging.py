"""Merge pull requests, at once or as soon as their requirements are met."""

from typing import Any, Literal

import msgspec
from aiohttp import web

from kingdom.standins.github.action_context import ActionContext, our_context
from kingdom.standins.github.actions import close, move_branch, new_sha, queue_webhook
from kingdom.standins.github.api import GithubRefusal, body_of, format_time
from kingdom.standins.github.commits import merge_commit, set_ref
from kingdom.standins.github.issues import issue_of
from kingdom.standins.github.merge_state import is_ready

ROUTES = web.RouteTableDef()
_MERGE = r"/repos/{owner}/{name}/pulls/{number:\d+}/merge"
MergeMethod = Literal["merge", "squash", "rebase"]


class _Merge(msgspec.Struct):
    sha: str | None = None
    merge_method: MergeMethod = "merge"
    commit_title: str | None = None
    commit_message: str | None = None


def merge(context: ActionContext, stored: dict[str, Any]) -> str:
    """Merge a pull request, and return the new commit of its base."""
    pull, name = stored["pull"], stored["repository"]
    title = f"Merge pull request #{stored['number']} from {pull['head']['owner']}/{pull['head']['ref']}"
    before, state = pull["base"]["sha"], context.state_file.state
    sha = merge_commit(state, stored, title)
    if sha is None:
        sha = new_sha(context.state_file)
        set_ref(state, name, f"refs/heads/{pull['base']['ref']}", sha)
    close(context, stored, merge_sha=sha)
    move_branch(context, name, pull["base"]["ref"], before, sha)
    return sha


def set_auto_merge(context: ActionContext, stored: dict[str, Any], method: MergeMethod | None) -> None:
    """Switch the automatic merge of a pull request on, or off with None."""
    stored["pull"]["auto_merge"] = {"by": context.by, "method": method} if method else None
    queue_webhook(context, stored, "auto_merge_enabled" if method else "auto_merge_disabled")
    merge_waiting(context, stored["repository"])


def merge_waiting(context: ActionContext, repository: str) -> None:
    """Merge each pull request that waits for its requirements and now meets them."""
    for stored in context.state_file.state["issues"][repository].values():
        waiting = stored["pull"] and stored["pull"].get("auto_merge")
        if waiting and is_ready(context.state_file.state, stored):
            by = ActionContext(application=context.application, base=context.base, by=waiting["by"], at=format_time())
            merge(by, stored)


@ROUTES.get(_MERGE)
async def show_merged(request: web.Request) -> web.Response:
    """Answer whether a pull request was merged."""
    merged = issue_of(request, pull=True)["pull"]["merged_at"]
    return web.Response(status=204 if merged else 404)


@ROUTES.put(_MERGE)
async def merge_pull_request(request: web.Request) -> web.Response:
    """Merge a pull request, if its head is the expected one and nothing prevents it."""
    asked, context, stored = await body_of(request, _Merge), our_context(request), issue_of(request, pull=True)
    if not is_ready(context.state_file.state, stored):
        raise GithubRefusal(405, "Pull Request is not mergeable")
    if asked.sha not in (None, stored["pull"]["head"]["sha"]):
        raise GithubRefusal(409, "Head branch was modified. Review and try the merge again.")
    details = {"repository": stored["repository"], "number": stored["number"], "sha": asked.sha}
    with context.state_file.change("PUT pull request merge", **details):
        sha = merge(context, issue_of(request, pull=True))
    return web.json_response({"sha": sha, "merged": True, "message": "Pull Request successfully merged"})
