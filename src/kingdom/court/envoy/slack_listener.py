"""Receive messages and clicks from Slack over Socket Mode. Each one is acknowledged after its commit."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any

from slack_bolt.adapter.socket_mode.async_handler import AsyncSocketModeHandler
from slack_bolt.app.async_app import AsyncApp
from slack_bolt.context.ack.async_ack import AsyncAck

from kingdom.bus.port import Bus
from kingdom.court.envoy.answers import SubmissionResult
from kingdom.court.envoy.background import BackgroundTasks
from kingdom.court.envoy.messenger import ProgressMark
from kingdom.court.envoy.receiving import ButtonClick, read_message, receive_click, receive_message
from kingdom.court.envoy.slack_format import ANSWER_ACTION, plain_text, read_choice
from kingdom.court.envoy.slack_messenger import SlackMessenger
from kingdom.text import sentence
from kingdom.workflow.records import run_transaction

# How often the client checks its connection.
_PING_SECONDS = 10.0
# How long a stop waits for events that are being processed.
_LAST_WAIT_SECONDS = 10.0


class SlackListener:
    """Receives answers, clicks, mentions and direct messages while `run` runs."""

    def __init__(
        self,
        bus: Bus,
        messenger: SlackMessenger,
        background: BackgroundTasks,
        app_token: str,
        clock: Callable[[], datetime],
    ) -> None:
        self._bus = bus
        self._messenger = messenger
        self._background = background
        self._app_token = app_token
        self._clock = clock
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Stay connected until stopped, then finish the events that are being processed."""
        handler = AsyncSocketModeHandler(self._app(), self._app_token, ping_interval=_PING_SECONDS)
        connecting = asyncio.create_task(handler.connect_async())  # type: ignore[no-untyped-call]  # slack_bolt has no annotation here
        try:
            await stopping.wait()
        finally:
            await self._wait_until_idle()
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
            await handler.close_async()  # type: ignore[no-untyped-call]  # slack_bolt has no annotation here

    async def handle_message(self, event: dict[str, Any]) -> None:
        """Process a message event."""
        message = read_message(event)
        if message is None:
            return
        result = await run_transaction(
            self._bus, lambda transaction: receive_message(transaction, message, self._clock())
        )
        if result.is_new and not result.is_answer:
            self._background.start(
                "mark a message", partial(self._messenger.mark, message.channel, message.ts, ProgressMark.SEEN)
            )
        self._respond(result, message.channel, message.thread_ts, message.user, plain_text(message.text))

    async def handle_click(self, ack: AsyncAck, body: dict[str, Any]) -> None:
        """Process a click on one of our buttons."""
        action, container = body["actions"][0], body["container"]
        choice = read_choice(str(action.get("value") or ""))
        if choice is not None:
            click = ButtonClick(
                choice=choice,
                channel=str(container["channel_id"]),
                user=str(body["user"]["id"]),
                ts=str(action["action_ts"]),
                thread_ts=str(container.get("thread_ts") or container["message_ts"]),
            )
            result = await run_transaction(
                self._bus, lambda transaction: receive_click(transaction, click, self._clock())
            )
            self._respond(result, click.channel, click.thread_ts, click.user, choice.choice)
        await ack()

    def _app(self) -> AsyncApp:
        # If a handler fails, Slack gets no acknowledgement and sends the event again.
        app = AsyncApp(client=self._messenger.web, process_before_response=True)

        async def on_message(event: dict[str, Any]) -> None:
            async with self._processing():
                await self.handle_message(event)

        async def on_click(ack: AsyncAck, body: dict[str, Any]) -> None:
            async with self._processing():
                await self.handle_click(ack, body)

        app.event("message")(on_message)
        app.event("app_mention")(on_message)
        app.action(ANSWER_ACTION)(on_click)
        return app

    @asynccontextmanager
    async def _processing(self) -> AsyncIterator[None]:
        self._busy += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()

    async def _wait_until_idle(self) -> None:
        """Wait for events that are being processed. Slack sends an event again if it is not acknowledged."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WAIT_SECONDS):
                await self._idle.wait()

    def _respond(self, result: SubmissionResult, channel: str, thread_ts: str, person: str, text: str) -> None:
        """Tell the person why an answer was refused, or show the answer on its question."""
        if result.refusal:
            words = sentence(f"This is not a valid answer: {result.refusal}")
            self._background.start(
                "explain a refused answer", partial(self._messenger.whisper, channel, thread_ts, person, words)
            )
        if result.question and result.question.message_ts:
            ending = f"Answered by {person}: {text}"
            self._background.start("close a question", partial(self._messenger.end_question, result.question, ending))
