"""Tell a requested cancellation from one that leaked out of awaited code."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from kingdom.errors import Transient


@contextmanager
def fail_on_stray_cancellation(what: str) -> Iterator[None]:
    """Turn a CancelledError into a failure if this task was not cancelled itself, but something that it awaited.

    A deadline, an operator, a stop and a lost lease all cancel the task itself.
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
