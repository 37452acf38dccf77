"""Commands that run until a signal. The first signal stops them gracefully, the second one at once."""

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn

import structlog
import typer

from kingdom.bootstrap import pending_migrations
from kingdom.bus.worker import Runnable
from kingdom.errors import Misconfigured
from kingdom.settings import Settings

# A handler that blocks the loop cannot be cancelled, so after this time the process exits anyway.
_LAST_WAIT_SECONDS = 5.0
# A shell reports 128 plus the number of the signal that ended a process.
BY_SIGNAL = 128
# The database connections of a role: for its handlers, lease renewals, wake-ups and retention.
CONNECTIONS = 20
_NEW_OBJECTS_PER_COLLECTION = 20_000
_log = structlog.get_logger("kingdom.cli")

Level = Annotated[Literal["debug", "info", "warning", "error"], typer.Option(help="The least important level to log.")]
MetricsPort = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics on this port; 0 takes a free one.")
]
MetricsHost = Annotated[str, typer.Option(help="The address to serve metrics on.")]
LOOPBACK = "127.0.0.1"


@dataclass(slots=True)
class ReceivedSignals:
    """Counts the signals that this process received."""

    count: int = 0

    @property
    def ends_at_once(self) -> bool:
        """Return whether a second signal came, which ends the process at once."""
        return self.count > 1


async def refuse_old_store(settings: Settings) -> None:
    """Reject a store that lacks migrations."""
    if missing := await pending_migrations(settings.database_url, schema=settings.schema):
        raise Misconfigured(f"the store lacks {', '.join(missing)}: run `kingdom bus migrate` first")


def collect_garbage_rarely() -> None:
    """Let the garbage collector do as much as a long-lived process needs, once all modules are loaded.

    Nearly everything is freed without it. With its usual settings it would take a tenth of the time of a busy process.
    """
    gc.collect()
    # After this, modules are no longer scanned.
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS_PER_COLLECTION)


def _stop_on_signals(stop: Callable[[bool], None]) -> ReceivedSignals:
    """Call `stop` in the event loop at every SIGTERM and SIGINT. Its argument says whether to end at once."""
    loop = asyncio.get_running_loop()
    received = ReceivedSignals()

    def receive(number: int, _frame: object) -> None:
        # This is not a signal handler of the event loop, because a blocked loop would never run it.
        received.count += 1
        at_once = received.ends_at_once
        with suppress(RuntimeError):
            # The loop may just have ended. Then there is nothing to stop.
            loop.call_soon_threadsafe(lambda: stop(at_once))
        if at_once:
            last = threading.Timer(_LAST_WAIT_SECONDS, os._exit, (BY_SIGNAL + number,))
            last.daemon = True
            last.start()

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, receive)
    return received


def cancel_on_signal() -> list[int]:
    """Cancel this task at the first signal and ignore later signals. Return the list to which signals are appended."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    received: list[int] = []

    def stop(number: int) -> None:
        if task and not received:
            task.cancel()
        received.append(number)

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # nohup lets a program ignore SIGHUP, which must stay so.
        if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN:
            loop.add_signal_handler(each, stop, each)
    return received


async def run_until_stopped(
    parts: Sequence[Runnable],
    background: Sequence[Coroutine[Any, Any, None]] = (),
    *,
    on_ready: Callable[[], None] = lambda: None,
) -> bool:
    """Run parts and background coroutines until a signal. Return whether a second signal ended them at once.

    `on_ready` is called once the signal handlers are installed, before anything runs. When a part or a coroutine ends
    by itself, the others are stopped too, and its error is raised.
    """

    def stop(at_once: bool) -> None:  # noqa: FBT001 - the signal handler passes it by position
        _log.info("stopping", at_once=at_once)
        for part in parts:
            part.stop(at_once=at_once)

    collect_garbage_rarely()
    received = _stop_on_signals(stop)
    on_ready()
    running = [asyncio.create_task(part.run()) for part in parts]
    others = [asyncio.create_task(each) for each in background]
    try:
        ended, _ = await asyncio.wait([*running, *others], return_when=asyncio.FIRST_COMPLETED)
        for part in parts:
            part.stop()
        await asyncio.wait(running)
    finally:
        for task in (*running, *others):
            task.cancel()
        await asyncio.gather(*running, *others, return_exceptions=True)
    for task in (*ended, *running):
        task.result()
    _log.info("ended", cut_off=received.ends_at_once)
    return received.ends_at_once


def drop_log_line(_logger: object, _method: str, _event: structlog.typing.EventDict) -> NoReturn:
    """Drop every log line, for commands that draw on the whole screen."""
    raise structlog.DropEvent
