"""Processes that stay: they run until a signal, end gracefully at the first one and at once at the second."""

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

# A handler that blocks the loop cannot be cut off; the process ends anyway.
_LAST_WAIT_SECONDS = 5.0
# What a shell reports for a process that a signal has ended.
BY_SIGNAL = 128
# What runs beside the handlers needs connections too: the lease, what is said, the upkeep.
CONNECTIONS = 20
_log = structlog.get_logger("kingdom.cli")

Level = Annotated[Literal["debug", "info", "warning", "error"], typer.Option(help="What to log.")]
MetricsPort = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics; 0 takes a free port.")
]
MetricsHost = Annotated[str, typer.Option(help="The address to serve them on.")]
LOOPBACK = "127.0.0.1"


@dataclass(slots=True)
class Heard:
    """The signals that came."""

    count: int = 0

    @property
    def again(self) -> bool:
        """Tell whether somebody could not wait."""
        return self.count > 1


async def refuse_old_store(settings: Settings) -> None:
    """Refuse a store that lacks migrations."""
    if missing := await pending_migrations(settings.database_url, schema=settings.schema):
        raise Misconfigured(f"the store lacks {', '.join(missing)}: run `kingdom bus migrate` first")


def hear_signals(stop: Callable[[bool], None]) -> Heard:
    """Have `stop` called in the loop at every SIGTERM and SIGINT; it is told whether everything shall end at once."""
    loop = asyncio.get_running_loop()
    heard = Heard()

    def hear(number: int, _frame: object) -> None:
        # A plain handler, since a blocked loop would never run one of its own.
        heard.count += 1
        at_once = heard.again
        with suppress(RuntimeError):
            # The loop may just have ended; then there is nothing left to stop.
            loop.call_soon_threadsafe(lambda: stop(at_once))
        if at_once:
            last = threading.Timer(_LAST_WAIT_SECONDS, os._exit, (BY_SIGNAL + number,))
            last.daemon = True
            last.start()

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, hear)
    return heard


async def run_until_stopped(parts: Sequence[Runnable], beside: Sequence[Coroutine[Any, Any, None]] = ()) -> bool:
    """Run parts together until a signal, and what goes on beside them; returns whether they were cut off.

    A part that ends by itself takes the others along, and its error is raised.
    """

    def stop(at_once: bool) -> None:  # noqa: FBT001 - the form that is called
        _log.info("stopping", at_once=at_once)
        for part in parts:
            part.stop(at_once=at_once)

    # A role, too, is loaded by now and stays; what its start has left behind does not.
    gc.collect()
    gc.freeze()
    heard = hear_signals(stop)
    running = [asyncio.create_task(part.run()) for part in parts]
    others = [asyncio.create_task(each) for each in beside]
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
    _log.info("ended", cut_off=heard.again)
    return heard.again


def tell_nobody(_logger: object, _method: str, _event: structlog.typing.EventDict) -> NoReturn:
    """End the way of a log line: the screen is for something else."""
    raise structlog.DropEvent
