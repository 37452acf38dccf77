"""The Envoy as a part of a process: tells people what is queued, hears them, and reminds them."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any
from zoneinfo import ZoneInfo

import structlog

from kingdom.bus.metrics import WorkerMetrics
from kingdom.bus.port import Bus
from kingdom.bus.worker import Worker
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.clock import utc_now
from kingdom.court.envoy.asides import Asides
from kingdom.court.envoy.place import LogPlace, Place
from kingdom.court.envoy.reminding import clear_away, remind
from kingdom.court.envoy.settings import EnvoySettings
from kingdom.court.envoy.telling import Tell
from kingdom.court.streams import MESSAGE_QUEUED, MESSAGE_STREAM
from kingdom.errors import KingdomError, Misconfigured
from kingdom.workflow.records import change

_POLL = timedelta(milliseconds=250)
_log = structlog.get_logger("kingdom.court")


class Envoy:
    """Runs until it is stopped; any number may run, each message is said by one of them."""

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
        self._asides = Asides()
        self._place = place_of(settings)
        dispatcher = Dispatcher()
        register(dispatcher, Tell(bus, self._place, self._asides, settings.channel))
        self._worker = Worker(bus, dispatcher, [MESSAGE_STREAM.name], poll=poll, metrics=metrics)
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Tell, hear and remind until stopped; what is being said is finished."""
        await self._place.open()
        beside = [asyncio.create_task(self._look_forever(), name="kingdom-envoy-rounds")]
        if (slack := self._settings.slack) and slack.app_token:
            ears = _slack("slack_ears").SlackEars(self._bus, self._place, self._asides, slack.app_token, self._clock)
            beside.append(asyncio.create_task(ears.run(self._stopping), name="kingdom-envoy-ears"))
        for task in beside:
            # An Envoy that does not hear or remind would look alive.
            task.add_done_callback(lambda ended: None if ended.cancelled() else self.stop())
        try:
            await self._worker.run()
        finally:
            self._stopping.set()
            ended = await asyncio.gather(*beside, return_exceptions=True)
            await self._asides.end()
            await self._place.close()
        for error in ended:
            if isinstance(error, Exception):
                raise error

    def stop(self, *, at_once: bool = False) -> None:
        """Ask the Envoy to end; for a signal handler of the loop."""
        self._stopping.set()
        self._worker.stop(at_once=at_once)

    async def look(self) -> None:
        """Remind people of what waits for long, and clear away what is over."""
        now = self._clock()
        channel, zone = self._settings.channel, self._zone
        await change(self._bus, lambda transaction: remind(transaction, now, channel, zone))
        await clear_away(self._bus, self._place, now)

    async def _look_forever(self) -> None:
        while not self._stopping.is_set():
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - one spoilt record must not silence the Envoy
                expected = isinstance(error, KingdomError)
                _log.warning(
                    "the Envoy could not look at open questions, trying again",
                    error=str(error),
                    exc_info=None if expected else error,
                )
            try:
                async with asyncio.timeout(self._settings.every.total_seconds()):
                    await self._stopping.wait()
            except TimeoutError:
                continue


def register(dispatcher: Dispatcher, tell: Tell) -> None:
    """Let a worker say what is queued."""
    dispatcher.effect(MESSAGE_QUEUED, tell, stream=MESSAGE_STREAM.name)


def place_of(settings: EnvoySettings) -> Place:
    """Return where people are told."""
    place: Place = LogPlace()
    if settings.slack:
        place = _slack("slack_place").SlackPlace(settings.slack)
    elif settings.webhook:
        # By name as well: the log needs no HTTP client.
        place = import_module("kingdom.court.envoy.webhook").WebhookPlace(settings.webhook)
    return place


def _slack(module: str) -> Any:
    """Load what speaks with Slack, which needs more than the rest."""
    try:
        return import_module(f"kingdom.court.envoy.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("slack_bolt", "slack_sdk"):
            raise
        raise Misconfigured("Slack needs its client: pip install 'kingdom[slack]'") from error
