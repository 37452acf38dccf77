"""Listening to Slack by Socket Mode; Slack is told that we heard only once it is committed."""

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
from kingdom.court.envoy.answers import Taken
from kingdom.court.envoy.asides import Asides
from kingdom.court.envoy.hearing import Clicked, hear, hear_click, read_message
from kingdom.court.envoy.place import Mark
from kingdom.court.envoy.slack_place import SlackPlace
from kingdom.court.envoy.slack_words import ANSWER_ACTION, plain, read_choice
from kingdom.text import sentence
from kingdom.workflow.records import change

# How often the client looks after its connection.
_PING_SECONDS = 10.0
_LAST_WAIT_SECONDS = 10.0


class SlackEars:
    """Hears answers, clicks, mentions and direct messages while the block of `run` lasts."""

    def __init__(
        self, bus: Bus, place: SlackPlace, asides: Asides, app_token: str, clock: Callable[[], datetime]
    ) -> None:
        self._bus = bus
        self._place = place
        self._asides = asides
        self._app_token = app_token
        self._clock = clock
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Stay connected until stopped, then finish what was begun to be heard."""
        handler = AsyncSocketModeHandler(self._app(), self._app_token, ping_interval=_PING_SECONDS)
        connecting = asyncio.create_task(handler.connect_async())  # type: ignore[no-untyped-call]
        try:
            await stopping.wait()
        finally:
            await self._fall_silent()
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
            await handler.close_async()  # type: ignore[no-untyped-call]

    async def hear_message(self, event: dict[str, Any]) -> None:
        """Take what Slack tells that was said."""
        said = read_message(event)
        if said is None:
            return
        taken = await change(self._bus, lambda transaction: hear(transaction, said, self._clock()))
        if taken.is_new and not taken.is_answer:
            self._asides.begin("mark a message", partial(self._place.mark, said.channel, said.ts, Mark.SEEN))
        self._respond(taken, said.channel, said.thread_ts, said.user, plain(said.text))

    async def hear_click(self, ack: AsyncAck, body: dict[str, Any]) -> None:
        """Take a click on one of our buttons."""
        action, container = body["actions"][0], body["container"]
        choice = read_choice(str(action.get("value") or ""))
        if choice is not None:
            click = Clicked(
                choice=choice,
                channel=str(container["channel_id"]),
                user=str(body["user"]["id"]),
                ts=str(action["action_ts"]),
                thread_ts=str(container.get("thread_ts") or container["message_ts"]),
            )
            taken = await change(self._bus, lambda transaction: hear_click(transaction, click, self._clock()))
            self._respond(taken, click.channel, click.thread_ts, click.user, choice.choice)
        await ack()

    def _app(self) -> AsyncApp:
        # A listener that fails leaves the envelope unacknowledged, so that Slack sends it again.
        app = AsyncApp(client=self._place.web, process_before_response=True)

        async def on_message(event: dict[str, Any]) -> None:
            async with self._listening():
                await self.hear_message(event)

        async def on_click(ack: AsyncAck, body: dict[str, Any]) -> None:
            async with self._listening():
                await self.hear_click(ack, body)

        app.event("message")(on_message)
        app.event("app_mention")(on_message)
        app.action(ANSWER_ACTION)(on_click)
        return app

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        self._busy += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()

    async def _fall_silent(self) -> None:
        """Wait for what is being heard; what takes longer Slack will tell again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WAIT_SECONDS):
                await self._idle.wait()

    def _respond(self, taken: Taken, channel: str, thread_ts: str, person: str, text: str) -> None:
        """Let people see what became of an answer."""
        if taken.refusal:
            words = sentence(f"This was not taken as an answer: {taken.refusal}")
            self._asides.begin("tell why", partial(self._place.whisper, channel, thread_ts, person, words))
        if taken.question and taken.question.message_ts:
            ending = f"Answered by {person}: {text}"
            self._asides.begin("end a question", partial(self._place.end_question, taken.question, ending))
