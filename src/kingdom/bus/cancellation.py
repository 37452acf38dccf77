"""Distinguish a cancellation of this task from a CancelledError that awaited code raised."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from kingdom.errors import Transient


@contextmanager
def fail_on_stray_cancellation(what: str) -> Iterator[None]:
    """Turn a CancelledError into a Transient error, unless this task itself was cancelled."""
    try:
        yield
    except asyncio.CancelledError as error:
        fail_if_stray(error, what)
        raise


def fail_if_stray(error: asyncio.CancelledError, what: str) -> None:
    """Raise a Transient error if this task was not cancelled itself.

    A deadline, an operator, a stop and a lost lease cancel this task itself. Any other CancelledError comes from a task
    that this task awaits.
    """
    task = asyncio.current_task()
    if task is not None and not task.cancelling():
        raise Transient(
            f"{what} raised CancelledError, but was not cancelled: a task that it awaited was cancelled; catch the"
            " error where that task is awaited"
        ) from error
