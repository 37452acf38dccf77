"""Calls of the Kafka client, which block until the brokers answer."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from kingdom.errors import Unavailable

# How long a process that stops waits for the brokers.
_LAST_ANSWER_SECONDS = 10.0
# Longer than the sum of the time limits that one call passes to the client. The client ignores the limit of
# `send_offsets_to_transaction` if it loses its connection meanwhile, and may never return (librdkafka, issue 5456).
_CALL_SECONDS = 90.0
T = TypeVar("T")


async def call_client(call: Callable[[], T], stopping: asyncio.Event) -> T:
    """Return what a blocking call returns; raises Unavailable if it does not return in time.

    Once `stopping` is set, wait only a few seconds more. The call runs in a daemon thread. The threads of asyncio would
    keep the process alive until the brokers answer.
    """
    answer: Future[T] = Future()
    # A running call cannot be cancelled. An answer that comes too late is dropped.
    answer.set_running_or_notify_cancel()

    threading.Thread(target=_answer, args=(call, answer), name="kingdom-kafka-call", daemon=True).start()
    answered = asyncio.wrap_future(answer)
    stopped = asyncio.ensure_future(stopping.wait())
    waits: set[asyncio.Future[Any]] = {answered, stopped}
    try:
        await asyncio.wait(waits, timeout=_CALL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not answered.done() and stopping.is_set():
            await asyncio.wait({answered}, timeout=_LAST_ANSWER_SECONDS)
    finally:
        stopped.cancel()
        answered.cancel()
    if answered.cancelled():
        if stopping.is_set():
            raise Unavailable(f"the brokers have not answered for {_LAST_ANSWER_SECONDS:g} s, and this process ends")
        raise Unavailable(f"a call of the Kafka client has not returned for {_CALL_SECONDS:g} s")
    try:
        return answered.result()
    finally:
        # The traceback of an error holds this frame. If the frame held the error too, the callers would hold what they
        # send until the garbage collector runs.
        del answer, answered, waits


def _answer(call: Callable[[], T], answer: Future[T]) -> None:
    try:
        answer.set_result(call())
    except BaseException as error:  # noqa: BLE001 - the caller raises it
        answer.set_exception(error)
        del answer
