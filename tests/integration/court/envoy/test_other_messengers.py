"""Without Slack: a webhook, or the log."""

import hashlib
import hmac
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog
from aiohttp import web

from kingdom.court.envoy.settings import EnvoySettings, EnvoyWebhookSettings
from kingdom.log_output import configure_logs
from kingdom.standins.server import start
from tests.integration.court.envoy.scene import DEV, TASK, Scene

SECRET = "of two"  # noqa: S105 - only this test uses it


@dataclass
class Receiver:
    """A server that handles each idempotency key only once."""

    url: str = ""
    # The statuses of the next answers. With 0 the request is executed and the connection closed without an answer.
    statuses: list[int] = field(default_factory=list)
    requests: int = 0
    done: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        signed = "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        assert hmac.compare_digest(signed, request.headers["X-Kingdom-Signature-256"])
        self.requests += 1
        status = self.statuses.pop(0) if self.statuses else 200
        if status in (0, 200):
            self.done.setdefault(request.headers["Idempotency-Key"], json.loads(body))
        if status == 0 and request.transport:
            request.transport.abort()
        headers = {"Retry-After": "1"} if status == 429 else {}
        return web.Response(status=status or 200, text="no such hook" if status == 404 else "", headers=headers)


@asynccontextmanager
async def receiver(*statuses: int) -> AsyncIterator[Receiver]:
    there = Receiver(statuses=list(statuses))
    application = web.Application()
    application.router.add_post("/hook", there.receive)
    running = await start(application)
    there.url = f"{running.url}/hook"
    try:
        yield there
    finally:
        await running.stop()


def settings(there: Receiver) -> EnvoySettings:
    return EnvoySettings(webhook=EnvoyWebhookSettings(url=there.url, secret=SECRET))


async def test_a_webhook_gets_every_message_signed_and_in_order(scene: Scene) -> None:
    first = await scene.begin()
    asked = await scene.ask_person("Merge it?", "yes", "no")
    async with receiver() as there, scene.envoy(settings=settings(there)):
        await scene.is_sent(first, asked)
    start_of, question = there.done.values()
    assert start_of["id"] == first.id
    assert (question["type"], question["content"], question["channel"]) == ("human_input_request", "Merge it?", DEV)
    assert question["context"]["task_id"] == TASK
    assert question["context"]["choices"] == ["yes", "no"]
    assert TASK in await scene.remembered("awaiting-responses")
    assert await scene.remembered("thread-mappings") == {}


async def test_a_webhook_whose_answer_is_lost_gets_the_same_idempotency_key_again(scene: Scene) -> None:
    first = await scene.begin()
    async with receiver(0, 503) as there, scene.envoy(settings=settings(there)):
        await scene.is_sent(first)
    assert (len(there.done), there.requests) == (1, 3)


async def test_a_webhook_that_asks_for_a_later_retry_gets_it(scene: Scene) -> None:
    first = await scene.begin()
    async with receiver(429) as there, scene.envoy(settings=settings(there)):
        await scene.is_sent(first)
    assert (len(there.done), there.requests) == (1, 2)


async def test_a_webhook_that_refuses_leaves_a_dead_letter_that_says_why(scene: Scene) -> None:
    first = await scene.begin()
    async with receiver(404) as there, scene.envoy(settings=settings(there)):
        [reason] = await scene.dead()
    assert "HTTP 404 no such hook" in reason
    assert (await scene.message(first)).status == "pending"


async def test_without_a_messenger_messages_are_written_to_the_log(scene: Scene) -> None:
    first = await scene.begin("gen-pr takes it on.")
    configure_logs(json=True, level=logging.INFO)
    try:
        with structlog.testing.capture_logs() as logged:
            async with scene.envoy(settings=EnvoySettings()):
                await scene.is_sent(first)
    finally:
        configure_logs(json=True, level=logging.ERROR)
    [line] = [each for each in logged if each.get("message") == first.id]
    assert (line["event"], line["assignment"]) == ("gen-pr takes it on.", TASK)
