"""Webhooks: send signed events in order. A failed delivery is repeated only on request."""

import asyncio
import hashlib
import hmac
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec
from aiohttp import web

from kingdom.standins.github.action_context import ActionContext, our_context
from kingdom.standins.github.api import base_of, body_of, format_time, invalid, not_found, page_of, repository_of
from kingdom.standins.github.bodies import GithubBodies
from kingdom.standins.server import FAULTS, STATE_FILE

ROUTES = web.RouteTableDef()
_HOOKS = "/repos/{owner}/{name}/hooks"
_DELIVERIES = _HOOKS + r"/{hook:\d+}/deliveries"
_WAKE = web.AppKey("wake", asyncio.Event)
_TIMEOUT = aiohttp.ClientTimeout(total=10)
# Every change writes the whole state, so only this many sent payloads are stored.
_DELIVERIES_KEPT = 200
_FAILED = {"status": "failed to connect to host", "status_code": 502}


class _WebhookConfig(msgspec.Struct):
    url: str = ""
    content_type: str = "form"
    secret: str = ""


class _NewWebhook(msgspec.Struct):
    config: _WebhookConfig
    events: list[str] = msgspec.field(default_factory=lambda: ["push"])


def add_hook(
    context: ActionContext,
    repository: str | None,
    *,
    url: str,
    secret: str,
    events: list[str],
    content_type: str,
    app: int | None = None,
) -> dict[str, Any]:
    """Register a webhook for one repository, for all repositories, or for those of an App, and send it a ping."""
    stored = {
        "id": context.state_file.next_number("id"),
        "repository": repository,
        "url": url,
        "secret": secret,
        "events": events,
        "content_type": content_type,
        "created_at": context.at,
        "app": app,
    }
    context.state_file.state["hooks"].append(stored)
    payload = {"zen": "Keep it logically awesome.", "hook_id": stored["id"], "hook": context.bodies.hook(stored)}
    _enqueue(context, stored, "ping", None, _payload(context, repository, payload), guid=str(uuid.uuid4()))
    return stored


def queue_webhooks(
    context: ActionContext, event: str, action: str | None, repository: str, payload: dict[str, Any]
) -> None:
    """Queue an event for every webhook that subscribes to it. Call it inside `StateFile.change`."""
    # All deliveries of an event have the same identifier.
    guid = str(uuid.uuid4())
    for hook in context.state_file.state["hooks"]:
        if hook["repository"] in (None, repository) and {"*", event} & set(hook["events"]):
            installation = _installation_of(context, hook, repository)
            if hook.get("app") and installation is None:
                continue
            document = {**({"action": action} if action else {}), **payload}
            document |= {"installation": {"id": installation}} if installation else {}
            _enqueue(context, hook, event, action, _payload(context, repository, document), guid=guid)


def start_sender(application: web.Application) -> None:
    """Send queued deliveries while the application runs."""
    application[_WAKE] = asyncio.Event()
    application.cleanup_ctx.append(_run_sender)


@ROUTES.get(_HOOKS)
async def list_hooks(request: web.Request) -> web.Response:
    """Answer with the webhooks of a repository."""
    name, state = repository_of(request), request.app[STATE_FILE].state
    shown = [hook for hook in state["hooks"] if hook["repository"] == name]
    return page_of(request, shown, GithubBodies(state, base_of(request)).hook)


@ROUTES.post(_HOOKS)
async def create_hook(request: web.Request) -> web.Response:
    """Register a webhook."""
    name, asked, context = repository_of(request), await body_of(request, _NewWebhook), our_context(request)
    if not asked.config.url:
        raise invalid("Hook", "missing_field", field="url")
    if any((hook["repository"], hook["url"]) == (name, asked.config.url) for hook in context.state_file.state["hooks"]):
        raise invalid("Hook", "custom", message="Hook already exists on this repository")
    with context.state_file.change("POST hook", repository=name, url=asked.config.url, events=asked.events):
        hook = add_hook(context, name, events=asked.events, **msgspec.structs.asdict(asked.config))
    return web.json_response(context.bodies.hook(hook), status=201)


@ROUTES.get(_DELIVERIES)
async def list_deliveries(request: web.Request) -> web.Response:
    """Answer with the deliveries of a webhook, newest first."""
    return page_of(request, _deliveries_of(request)[::-1], _summary)


@ROUTES.get(_DELIVERIES + r"/{delivery:\d+}")
async def show_delivery(request: web.Request) -> web.Response:
    """Answer with one delivery and its payload."""
    stored = _delivery_of(request)
    return web.json_response({**_summary(stored), "request": {"payload": json.loads(stored["body"])}})


@ROUTES.post(_DELIVERIES + r"/{delivery:\d+}/attempts")
async def redeliver(request: web.Request) -> web.Response:
    """Send a delivery again, with the same identifier."""
    context, delivery = our_context(request), _delivery_of(request)
    with context.state_file.change("POST delivery attempt", hook=delivery["hook_id"], guid=delivery["guid"]) as state:
        hook = next(hook for hook in state["hooks"] if hook["id"] == delivery["hook_id"])
        details = (delivery["event"], delivery["action"], delivery["body"])
        _enqueue(context, hook, *details, guid=delivery["guid"], redelivery=True)
    return web.json_response({}, status=202)


def _payload(context: ActionContext, repository: str | None, payload: dict[str, Any]) -> str:
    details = {"repository": context.bodies.repository(repository)} if repository else {}
    return json.dumps({**payload, **details, "sender": context.bodies.user(context.by)})


def _installation_of(context: ActionContext, hook: dict[str, Any], repository: str) -> int | None:
    """Return the installation of a webhook's App that has access to a repository, or None."""
    owner = repository.partition("/")[0]
    for each in context.state_file.state["installations"]:
        is_included = repository in (each["repositories"] or (repository,))
        if (each["app"], each["account"]) == (hook.get("app"), owner) and is_included:
            number: int = each["id"]
            return number
    return None


def _enqueue(
    context: ActionContext,
    hook: dict[str, Any],
    event: str,
    action: str | None,
    body: str,
    *,
    guid: str,
    redelivery: bool = False,
) -> None:
    state = context.state_file.state
    fault = context.application[FAULTS].take("PUSH", f"{event}.{action}" if action else event)
    delivery = {
        "id": context.state_file.next_number("delivery"),
        "guid": guid,
        "hook_id": hook["id"],
        "event": event,
        "action": action,
        "redelivery": redelivery,
        "delivered_at": context.at,
        "status": "pending",
        "status_code": 0,
        "body": body,
    }
    unsent = {each["delivery"] for each in state["outbox"] + state["held_back"]}
    old, recent = state["deliveries"][:-_DELIVERIES_KEPT], state["deliveries"][-_DELIVERIES_KEPT:]
    state["deliveries"] = [*(each for each in old if each["id"] in unsent), *recent, delivery]
    waiting = {"delivery": delivery["id"], "delay": fault.seconds if fault and fault.kind == "delay" else 0.0}
    if fault and fault.kind == "refuse":
        delivery.update(_FAILED)
    elif fault and fault.kind == "reorder":
        state["held_back"].append(waiting)
    else:
        state["outbox"] += [waiting] * (2 if fault and fault.kind == "repeat" else 1) + state["held_back"]
        state["held_back"] = []
    context.application[_WAKE].set()


async def _run_sender(application: web.Application) -> AsyncIterator[None]:
    sender = asyncio.create_task(_send_all(application))
    yield
    sender.cancel()
    with suppress(asyncio.CancelledError):
        await sender


async def _send_all(application: web.Application) -> None:
    state_file, wake = application[STATE_FILE], application[_WAKE]
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        while True:
            wake.clear()
            while state_file.state["outbox"]:
                waiting = state_file.state["outbox"][0]
                await asyncio.sleep(waiting["delay"])
                result = await _send(session, state_file.state, waiting["delivery"])
                # The delivery is removed only after it was sent, so a server that is killed here sends it again.
                with state_file.change() as state:
                    del state["outbox"][0]
                    for delivery in state["deliveries"]:
                        if delivery["id"] == waiting["delivery"]:
                            delivery.update(result, delivered_at=format_time())
            await wake.wait()


async def _send(session: aiohttp.ClientSession, state: dict[str, Any], number: int) -> dict[str, Any]:
    delivery = next(each for each in state["deliveries"] if each["id"] == number)
    hook = next(hook for hook in state["hooks"] if hook["id"] == delivery["hook_id"])
    as_json = hook["content_type"] == "json"
    body = (delivery["body"] if as_json else urlencode({"payload": delivery["body"]})).encode()
    headers = {
        "User-Agent": "GitHub-Hookshot/0000000",
        "Content-Type": "application/json" if as_json else "application/x-www-form-urlencoded",
        "X-GitHub-Event": delivery["event"],
        "X-GitHub-Delivery": delivery["guid"],
        "X-GitHub-Hook-ID": str(hook["id"]),
        "X-GitHub-Hook-Installation-Target-Type": "integration" if hook.get("app") else "repository",
    }
    if hook["secret"]:
        headers["X-Hub-Signature-256"] = f"sha256={hmac.new(hook['secret'].encode(), body, hashlib.sha256).hexdigest()}"
    try:
        async with session.post(hook["url"], data=body, headers=headers, allow_redirects=False) as answer:
            return {"status": "OK" if answer.ok else answer.reason or "failed", "status_code": answer.status}
    except TimeoutError:
        return {"status": "timed out", "status_code": 504}
    except aiohttp.ClientError:
        return _FAILED


def _summary(delivery: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in delivery.items() if name != "body"}


def _deliveries_of(request: web.Request) -> list[dict[str, Any]]:
    state, name, number = request.app[STATE_FILE].state, repository_of(request), int(request.match_info["hook"])
    if not any(hook["id"] == number and hook["repository"] in (None, name) for hook in state["hooks"]):
        raise not_found()
    return [each for each in state["deliveries"] if each["hook_id"] == number]


def _delivery_of(request: web.Request) -> dict[str, Any]:
    for delivery in _deliveries_of(request):
        if delivery["id"] == int(request.match_info["delivery"]):
            return delivery
    raise not_found()
