"""Notifications of our user: one thread per issue or pull request."""

from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Annotated, Any

import msgspec
from aiohttp import web

from kingdom.standins.github.api import base_of, body_of, format_time, not_found, page_of, since_of
from kingdom.standins.github.bodies import GithubBodies
from kingdom.standins.server import STATE_FILE

ROUTES = web.RouteTableDef()
_PAGE_MAX = 50


class _ReadUntil(msgspec.Struct):
    last_read_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


@ROUTES.get("/notifications")
async def list_threads(request: web.Request) -> web.Response:
    """Answer with the unread threads, newest first. The parameter `all` adds the threads that were read."""
    state = request.app[STATE_FILE].state
    since, before = since_of(request), since_of(request, "before")
    shown = [
        thread
        for thread in state["threads"].values()
        if (thread["unread"] or _has_flag(request, "all"))
        and (thread["reason"] != "subscribed" or not _has_flag(request, "participating"))
        and thread["updated_at"] >= since
        and (not before or thread["updated_at"] < before)
    ]
    shown.sort(key=lambda thread: (thread["updated_at"], int(thread["id"])), reverse=True)
    render = GithubBodies(state, base_of(request)).thread
    answer = page_of(request, shown, render, default=_PAGE_MAX, most=_PAGE_MAX)
    answer.headers["X-Poll-Interval"] = str(state["limits"]["poll_interval"])
    if state["threads_changed_at"]:
        changed = datetime.fromisoformat(state["threads_changed_at"]).astimezone(UTC)
        answer.headers["Last-Modified"] = format_datetime(changed, usegmt=True)
    return answer


@ROUTES.put("/notifications")
async def mark_all_read(request: web.Request) -> web.Response:
    """Mark every thread as read, except threads that were updated after `last_read_at`."""
    until = format_time((await body_of(request, _ReadUntil)).last_read_at)
    with request.app[STATE_FILE].change("PUT notifications", until=until) as state:
        for thread in state["threads"].values():
            if thread["updated_at"] <= until:
                _mark_read(state, thread)
    return web.json_response({"message": "All notifications have been marked as read."}, status=202)


@ROUTES.get("/notifications/threads/{id}")
async def show_thread(request: web.Request) -> web.Response:
    """Answer with one thread."""
    state = request.app[STATE_FILE].state
    return web.json_response(GithubBodies(state, base_of(request)).thread(_thread_of(request, state)))


@ROUTES.patch("/notifications/threads/{id}")
async def mark_read(request: web.Request) -> web.Response:
    """Mark one thread as read."""
    with request.app[STATE_FILE].change("PATCH notification thread", id=request.match_info["id"]) as state:
        _mark_read(state, _thread_of(request, state))
    return web.Response(status=205)


def _thread_of(request: web.Request, state: dict[str, Any]) -> dict[str, Any]:
    threads: dict[str, dict[str, Any]] = state["threads"]
    for thread in threads.values():
        if thread["id"] == request.match_info["id"]:
            return thread
    raise not_found()


def _mark_read(state: dict[str, Any], thread: dict[str, Any]) -> None:
    if thread["unread"]:
        thread.update(unread=False, last_read_at=format_time())
        state["threads_changed_at"] = max(state["threads_changed_at"] or "", format_time())


def _has_flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() == "true"
