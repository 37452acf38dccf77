"""Issues, and the comments, labels and assignees of issues and pull requests."""

from typing import Any, Literal

import msgspec
from aiohttp import web

from kingdom.standins.github import actions
from kingdom.standins.github.action_context import ActionContext, find_issue, our_context
from kingdom.standins.github.api import (
    GithubRefusal,
    base_of,
    body_of,
    invalid,
    not_found,
    page_of,
    repository_of,
    since_of,
)
from kingdom.standins.github.bodies import GithubBodies
from kingdom.standins.server import STATE_FILE

ROUTES = web.RouteTableDef()
_REPOSITORY = "/repos/{owner}/{name}"
_COMMENT = _REPOSITORY + r"/issues/comments/{id:\d+}"
_ISSUE = _REPOSITORY + r"/issues/{number:\d+}"


class _NewIssue(msgspec.Struct):
    title: str = ""
    body: str | None = None
    labels: list[str] = []
    assignee: str | None = None
    assignees: list[str] = []


class _Change(msgspec.Struct):
    title: str | None = None
    body: str | None = None
    state: Literal["open", "closed"] | None = None


class _NewComment(msgspec.Struct):
    body: str = ""


class _Labels(msgspec.Struct):
    labels: list[str]


_LabelsBody: Any = list[str] | _Labels


class _Assignees(msgspec.Struct):
    assignees: list[str]


@ROUTES.get(_REPOSITORY + "/issues")
async def list_issues(request: web.Request) -> web.Response:
    """Answer with the issues of a repository, including pull requests."""
    name, query, since = repository_of(request), request.query, since_of(request)
    state = request.app[STATE_FILE].state
    labels = {each for each in query.get("labels", "").split(",") if each}
    shown = [
        issue
        for issue in state["issues"][name].values()
        if query.get("state", "open") in ("all", issue["state"])
        and labels <= set(issue["labels"])
        and ("assignee" not in query or query["assignee"] in issue["assignees"])
        and ("creator" not in query or query["creator"] == issue["user"])
        and issue["updated_at"] >= since
    ]
    return page_of(request, sort(request, shown), GithubBodies(state, base_of(request)).issue)


@ROUTES.post(_REPOSITORY + "/issues")
async def create_issue(request: web.Request) -> web.Response:
    """Open an issue."""
    name, asked = repository_of(request), await body_of(request, _NewIssue)
    if not asked.title:
        raise invalid("Issue", "missing_field", field="title")
    context = our_context(request)
    with context.state_file.change("POST issue", repository=name, title=asked.title, body=asked.body):
        # GitHub still accepts the older field `assignee`.
        assignees = asked.assignees or ([asked.assignee] if asked.assignee else [])
        issue = actions.open_issue(
            context, name, title=asked.title, body=asked.body, labels=asked.labels, assignees=assignees
        )
    return web.json_response(context.bodies.issue(issue), status=201)


@ROUTES.get(_REPOSITORY + "/issues/events")
async def list_events(request: web.Request) -> web.Response:
    """Answer with the labels that were added to the issues and pull requests of a repository, newest first."""
    name, state = repository_of(request), request.app[STATE_FILE].state
    bodies = GithubBodies(state, base_of(request))

    def render(event: dict[str, Any]) -> dict[str, Any]:
        issue = bodies.issue(find_issue(state, name, event["number"]))
        label = {"name": event["label"], "color": "ededed"}
        about = {"id": event["id"], "event": event["event"], "created_at": event["at"], "label": label}
        return {**about, "actor": bodies.user(event["actor"]), "issue": issue}

    found = [each for each in state["issue_events"] if each["repository"] == name]
    return page_of(request, found[::-1], render)


@ROUTES.get(_ISSUE)
async def show_issue(request: web.Request) -> web.Response:
    """Answer with an issue."""
    state = request.app[STATE_FILE].state
    return web.json_response(GithubBodies(state, base_of(request)).issue(issue_of(request)))


@ROUTES.patch(_ISSUE)
async def edit_issue(request: web.Request) -> web.Response:
    """Change title, text or state of an issue."""
    context = await change_issue(request, "PATCH issue", pull=False)
    return web.json_response(context.bodies.issue(issue_of(request)))


@ROUTES.get(_ISSUE + "/comments")
async def list_comments(request: web.Request) -> web.Response:
    """Answer with the comments on an issue or a pull request, oldest first."""
    bodies, since = GithubBodies(request.app[STATE_FILE].state, base_of(request)), since_of(request)
    shown = [each for each in bodies.parts_of(issue_of(request), "comments") if each["updated_at"] >= since]
    return page_of(request, shown, bodies.comment)


@ROUTES.post(_ISSUE + "/comments")
async def create_comment(request: web.Request) -> web.Response:
    """Comment on an issue or a pull request."""
    number, body = issue_of(request)["number"], (await body_of(request, _NewComment)).body
    if not body.strip():
        raise invalid("IssueComment", "missing_field", field="body")
    context = our_context(request)
    with context.state_file.change("POST issue comment", repository=repository_of(request), number=number, body=body):
        stored = actions.comment(context, issue_of(request), body)
    return web.json_response(context.bodies.comment(stored), status=201)


@ROUTES.get(_COMMENT)
async def show_comment(request: web.Request) -> web.Response:
    """Answer with one comment."""
    state = request.app[STATE_FILE].state
    return web.json_response(GithubBodies(state, base_of(request)).comment(_comment_of(request)))


@ROUTES.patch(_COMMENT)
async def edit_comment(request: web.Request) -> web.Response:
    """Change the text of a comment."""
    context, body = our_context(request), (await body_of(request, _NewComment)).body
    stored = _comment_of(request)
    if not body.strip():
        raise invalid("IssueComment", "missing_field", field="body")
    details = {"repository": stored["repository"], "number": stored["number"], "id": stored["id"], "body": body}
    with context.state_file.change("PATCH issue comment", **details):
        actions.edit_comment(context, _comment_of(request), body)
    return web.json_response(context.bodies.comment(_comment_of(request)))


@ROUTES.delete(_COMMENT)
async def delete_comment(request: web.Request) -> web.Response:
    """Delete a comment."""
    context, stored = our_context(request), _comment_of(request)
    details = {"repository": stored["repository"], "number": stored["number"], "id": stored["id"]}
    with context.state_file.change("DELETE issue comment", **details):
        actions.edit_comment(context, _comment_of(request), None)
    return web.Response(status=204)


@ROUTES.get(_ISSUE + "/labels")
async def list_labels(request: web.Request) -> web.Response:
    """Answer with the labels of an issue or a pull request."""
    return _labels(request, our_context(request))


@ROUTES.post(_ISSUE + "/labels")
async def add_labels(request: web.Request) -> web.Response:
    """Add labels to an issue or a pull request; the body may be a plain list."""
    asked = await body_of(request, _LabelsBody)
    names = asked if isinstance(asked, list) else asked.labels
    context, issue = our_context(request), issue_of(request)
    details = {"repository": issue["repository"], "number": issue["number"], "labels": names}
    with context.state_file.change("POST issue labels", **details):
        actions.label(context, issue_of(request), names)
    return _labels(request, context)


@ROUTES.delete(_ISSUE + "/labels/{label}")
async def remove_label(request: web.Request) -> web.Response:
    """Remove a label from an issue or a pull request."""
    name, context, issue = request.match_info["label"], our_context(request), issue_of(request)
    if name not in issue["labels"]:
        raise GithubRefusal(404, "Label does not exist")
    details = {"repository": issue["repository"], "number": issue["number"], "label": name}
    with context.state_file.change("DELETE issue label", **details):
        actions.unlabel(context, issue_of(request), name)
    return _labels(request, context)


@ROUTES.post(_ISSUE + "/assignees")
async def add_assignees(request: web.Request) -> web.Response:
    """Assign users to an issue or a pull request."""
    asked, context, issue = await body_of(request, _Assignees), our_context(request), issue_of(request)
    details = {"repository": issue["repository"], "number": issue["number"], "assignees": asked.assignees}
    with context.state_file.change("POST issue assignees", **details):
        actions.assign(context, issue_of(request), asked.assignees)
    return web.json_response(context.bodies.issue(issue_of(request)), status=201)


def issue_of(request: web.Request, *, pull: bool = False) -> dict[str, Any]:
    """Return the issue or pull request in the path."""
    return find_issue(request.app[STATE_FILE].state, repository_of(request), request.match_info["number"], pull=pull)


def sort(request: web.Request, issues: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return issues or pull requests in the requested order, by default newest first."""
    by = {"updated": "updated_at"}.get(request.query.get("sort", ""), "created_at")
    newest_first = request.query.get("direction", "desc") != "asc"
    return sorted(issues, key=lambda issue: (issue[by], issue["number"]), reverse=newest_first)


async def change_issue(request: web.Request, call: str, *, pull: bool) -> ActionContext:
    """Change title, text or state of an issue or a pull request."""
    asked = await body_of(request, _Change)
    context, issue = our_context(request), issue_of(request, pull=pull)
    details = {"repository": issue["repository"], "number": issue["number"], **_given(asked, "title", "body", "state")}
    with context.state_file.change(call, **details):
        issue = issue_of(request, pull=pull)
        if texts := _given(asked, "title", "body"):
            actions.edit(context, issue, texts)
        if asked.state not in (None, issue["state"]):
            (actions.close if asked.state == "closed" else actions.reopen)(context, issue)
    return context


def _comment_of(request: web.Request) -> dict[str, Any]:
    place = (repository_of(request), int(request.match_info["id"]))
    comments: list[dict[str, Any]] = request.app[STATE_FILE].state["comments"]
    for stored in comments:
        if (stored["repository"], stored["id"]) == place:
            return stored
    raise not_found()


def _given(asked: _Change, *names: str) -> dict[str, str]:
    return {name: getattr(asked, name) for name in names if getattr(asked, name) is not None}


def _labels(request: web.Request, context: ActionContext) -> web.Response:
    issue = issue_of(request)
    return page_of(request, issue["labels"], lambda name: context.bodies.label(issue["repository"], name))
