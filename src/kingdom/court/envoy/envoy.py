"""The Envoy: sends queued messages to people, receives their answers, and reminds them of questions."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import structlog

from kingdom.bus.metrics import WorkerMetrics
from kingdom.bus.port import Bus
from kingdom.bus.worker import Worker
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.clock import utc_now
from kingdom.court.envoy.background import BackgroundTasks
from kingdom.court.envoy.messenger import LogMessenger, Messenger
from kingdom.court.envoy.reminders import clean_up_questions, send_reminders
from kingdom.court.envoy.sending import SendMessage
from kingdom.court.envoy.settings import EnvoySettings
from kingdom.court.streams import MESSAGE_QUEUED, MESSAGE_STREAM
from kingdom.errors import Misconfigured
from kingdom.failure_log import log_failure
from kingdom.workflow.records import run_transaction

if TYPE_CHECKING:
    from kingdom.court.envoy.slack_listener import SlackListener

_POLL = timedelta(milliseconds=250)
_log = structlog.get_logger("kingdom.court")


class Envoy:
    """Runs until stopped. Any number of Envoys may run; each message is sent by one of them."""

    def __init__(
        self,
        bus: Bus,
        settings: EnvoySettings,
        *,
        zone: ZoneInfo,
        clock: Callable[[], datetime] = utc_now,
        poll: timedelta = _POLL,
        metrics: WorkerMetrics | None = None,
    ) -> None:
        self._bus = bus
        self._settings = settings
        self._zone = zone
        self._clock = clock
        self._background = BackgroundTasks()
        self._messenger = make_messenger(settings)
        dispatcher = Dispatcher()
        register(dispatcher, SendMessage(bus, self._messenger, self._background, settings.channel))
        self._worker = Worker(bus, dispatcher, [MESSAGE_STREAM.name], poll=poll, metrics=metrics)
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Send, receive and remind until stopped; a message that is being sent is finished."""
        await self._messenger.open()
        listener = self._make_listener()
        loops = [asyncio.create_task(self._remind_until_stopped(), name="kingdom-envoy-reminders")]
        if listener:
            loops.append(asyncio.create_task(listener.run(self._stopping), name="kingdom-envoy-listener"))
        for task in loops:
            # Stop if a loop ends by itself. Otherwise an Envoy that no longer listens or reminds would look alive.
            task.add_done_callback(lambda ended: None if ended.cancelled() else self.stop())
        try:
            await self._worker.run()
        finally:
            self._stopping.set()
            ended = await asyncio.gather(*loops, return_exceptions=True)
            await self._background.end()
            await self._messenger.close()
        for error in ended:
            if isinstance(error, Exception):
                raise error

    def stop(self, *, at_once: bool = False) -> None:
        """Ask the Envoy to end. A signal handler of the loop may call this."""
        self._stopping.set()
        self._worker.stop(at_once=at_once)

    async def remind(self) -> None:
        """Remind people of old questions, and clean up the questions that are over."""
        now = self._clock()
        channel, zone = self._settings.channel, self._zone
        await run_transaction(self._bus, lambda transaction: send_reminders(transaction, now, channel, zone))
        await clean_up_questions(self._bus, self._messenger, now)

    async def _remind_until_stopped(self) -> None:
        while not self._stopping.is_set():
            try:
                await self.remind()
            except Exception as error:  # noqa: BLE001 - one invalid record must not end the Envoy
                log_failure(_log, "cannot check open questions, trying again", error)
            try:
                async with asyncio.timeout(self._settings.every.total_seconds()):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    def _make_listener(self) -> "SlackListener | None":
        slack = self._settings.slack
        if slack is None or not slack.app_token:
            return None
        with _needs_slack_client():
            from kingdom.court.envoy.slack_listener import SlackListener  # noqa: PLC0415 - needs kingdom[slack]
            from kingdom.court.envoy.slack_messenger import SlackMessenger  # noqa: PLC0415 - needs kingdom[slack]
        if not isinstance(self._messenger, SlackMessenger):
            raise TypeError("settings with Slack make a SlackMessenger")
        return SlackListener(self._bus, self._messenger, self._background, slack.app_token, self._clock)


def register(dispatcher: Dispatcher, effect: SendMessage) -> None:
    """Register the effect that sends queued messages."""
    dispatcher.effect(MESSAGE_QUEUED, effect, stream=MESSAGE_STREAM.name)


def make_messenger(settings: EnvoySettings) -> Messenger:
    """Return the messenger that the settings ask for."""
    if settings.slack:
        with _needs_slack_client():
            from kingdom.court.envoy.slack_messenger import SlackMessenger  # noqa: PLC0415 - needs kingdom[slack]
        return SlackMessenger(settings.slack)
    if settings.webhook:
        from kingdom.court.envoy.webhook_messenger import (  # noqa: PLC0415 - loads an HTTP client that the log does not need
            WebhookMessenger,
        )

        return WebhookMessenger(settings.webhook)
    return LogMessenger()


@contextmanager
def _needs_slack_client() -> Iterator[None]:
    """Say what to install if the Slack client is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("slack_bolt", "slack_sdk"):
            raise
        raise Misconfigured("Slack needs its client: pip install 'kingdom[slack]'") from error
