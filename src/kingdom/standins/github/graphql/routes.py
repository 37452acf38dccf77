"""Requests of the GraphQL API, and its mutations."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from kingdom.standins.github.action_context import ActionContext, our_context
from kingdom.standins.github.api import GithubCaller, GithubRefusal, body_of, caller_of
from kingdom.standins.github.apps.permissions import require
from kingdom.standins.github.commits import NO_COMMIT, commit_of_ref
from kingdom.standins.github.git_refs import move_ref
from kingdom.standins.github.graphql.document import GraphqlError, RequestedField, parse_document, select
from kingdom.standins.github.graphql.objects import GraphqlObjects
from kingdom.standins.github.merge_state import is_ready
from kingdom.standins.github.merging import MergeMethod, set_auto_merge
from kingdom.standins.github.review_actions import set_resolved

ROUTES = web.RouteTableDef()
_Mutation = Callable[[ActionContext, GithubCaller, Mapping[str, Any]], dict[str, Any]]


class _Operation(msgspec.Struct):
    query: str = ""
    variables: dict[str, Any] | None = None


@ROUTES.post("/graphql")
async def execute(request: web.Request) -> web.Response:
    """Execute an operation. GraphQL answers with status 200 even if the operation fails."""
    asked, context, caller = await body_of(request, _Operation), our_context(request), caller_of(request)
    path: list[str] = []
    try:
        kind, fields = parse_document(asked.query, asked.variables or {})
        if kind == "query":
            return web.json_response({"data": select(GraphqlObjects(context, caller).query(), fields)})
        data = {}
        for each in fields:
            path = [each.key]
            data[each.key] = _mutate(context, caller, each)
        return web.json_response({"data": data})
    except (GraphqlError, GithubRefusal) as error:
        name = error.kind if isinstance(error, GraphqlError) else {403: "FORBIDDEN"}.get(error.status, "UNPROCESSABLE")
        return web.json_response({"data": None, "errors": [{"type": name, "path": path, "message": str(error)}]})


def _mutate(context: ActionContext, caller: GithubCaller, asked: RequestedField) -> Any:
    if asked.name not in _MUTATIONS:
        raise GraphqlError("undefinedField", f"Field '{asked.name}' doesn't exist on type 'Mutation'")
    given = asked.arguments["input"]
    with context.state_file.change(f"mutation {asked.name}", **given):
        result = _MUTATIONS[asked.name](context, caller, given)
    return select({"clientMutationId": given.get("clientMutationId"), **result}, asked.fields)


def _update_refs(context: ActionContext, caller: GithubCaller, given: Mapping[str, Any]) -> dict[str, Any]:
    """Move refs, if each of them points to the expected commit."""
    require(caller, "contents", "write")
    name = GraphqlObjects(context, caller).find_repository(given["repositoryId"])
    for update in given["refUpdates"]:
        before = commit_of_ref(context.state_file.state, name, update["name"]) or NO_COMMIT
        if update.get("beforeOid") not in (None, before):
            message = f"Expected {update['name']} to point to {update['beforeOid']}, but it points to {before}"
            raise GraphqlError("UNPROCESSABLE", message)
        move_ref(context, name, update["name"], update["afterOid"], force=update.get("force") or False)
    return {}


def _resolve_thread(context: ActionContext, caller: GithubCaller, given: Mapping[str, Any]) -> dict[str, Any]:
    return _set_resolved(context, caller, given, resolved=True)


def _unresolve_thread(context: ActionContext, caller: GithubCaller, given: Mapping[str, Any]) -> dict[str, Any]:
    return _set_resolved(context, caller, given, resolved=False)


def _set_resolved(
    context: ActionContext, caller: GithubCaller, given: Mapping[str, Any], *, resolved: bool
) -> dict[str, Any]:
    require(caller, "pull_requests", "write")
    objects = GraphqlObjects(context, caller)
    first = objects.find_thread(given["threadId"])
    set_resolved(context, first, resolved=resolved)
    return {"thread": objects.thread(first)}


def _enable_auto_merge(context: ActionContext, caller: GithubCaller, given: Mapping[str, Any]) -> dict[str, Any]:
    """Let a pull request merge as soon as it meets its requirements."""
    require(caller, "pull_requests", "write")
    require(caller, "contents", "write")
    objects = GraphqlObjects(context, caller)
    stored = objects.find_pull_request(given["pullRequestId"])
    if given.get("expectedHeadOid") not in (None, stored["pull"]["head"]["sha"]):
        raise GraphqlError("UNPROCESSABLE", "The head of the pull request is not the expected one")
    if is_ready(context.state_file.state, stored):
        raise GraphqlError("UNPROCESSABLE", "Pull request is in clean status")
    method = msgspec.convert((given.get("mergeMethod") or "MERGE").lower(), MergeMethod)
    set_auto_merge(context, stored, method)
    return {"actor": objects.actor(caller.login), "pullRequest": objects.pull_request(stored)}


def _disable_auto_merge(context: ActionContext, caller: GithubCaller, given: Mapping[str, Any]) -> dict[str, Any]:
    require(caller, "pull_requests", "write")
    objects = GraphqlObjects(context, caller)
    stored = objects.find_pull_request(given["pullRequestId"])
    if not stored["pull"].get("auto_merge"):
        raise GraphqlError("UNPROCESSABLE", "Can't disable auto-merge for this pull request")
    set_auto_merge(context, stored, None)
    return {"actor": objects.actor(caller.login), "pullRequest": objects.pull_request(stored)}


_MUTATIONS: Mapping[str, _Mutation] = {
    "updateRefs": _update_refs,
    "resolveReviewThread": _resolve_thread,
    "unresolveReviewThread": _unresolve_thread,
    "enablePullRequestAutoMerge": _enable_auto_merge,
    "disablePullRequestAutoMerge": _disable_auto_merge,
}
