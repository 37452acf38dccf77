"""Distinguish a cancellation of this task from a CancelledError that awaited code raised."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from kingdom.errors import Transient


@contextmanager
def fail_on_stray_cancellation(what: str) -> Iterator[None]:
    """Turn a CancelledError into a Transient error, unless this task itself was cancelled.

    A deadline, an operator, a stop and a lost lease cancel this task itself. Any other CancelledError comes from a task
    that this task awaits.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise Transient(
            f"{what} raised CancelledError, but was not cancelled: a task that it awaited was cancelled; catch the"
            " error where that task is awaited"
        ) from error
