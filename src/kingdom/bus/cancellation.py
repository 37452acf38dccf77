"""Telling a cancellation that was asked for from one that leaked out of awaited code."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from kingdom.errors import Transient


@contextmanager
def unasked_cancellation_fails(what: str) -> Iterator[None]:
    """Turn a CancelledError into a failure if nobody cancelled this task: something that it awaited was cancelled.

    A deadline, an operator, a stop and a lost lease all cancel the task itself.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise Transient(
            f"{what} raised CancelledError, but nobody cancelled it: a task that it awaited was cancelled; handle that"
            " there"
        ) from error
