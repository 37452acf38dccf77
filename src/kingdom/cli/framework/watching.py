"""`--watch`: refresh a view until interrupted."""

import asyncio
import select
import sys
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Never, TypeVar

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from kingdom.cli.framework.output import CommandOutput

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Refresh until interrupted.")]
_EVERY_SECONDS = 2.0
_T = TypeVar("_T")


def identity(state: object) -> object:
    """Return a state unchanged."""
    return state


async def watch(
    output: CommandOutput,
    read: Callable[[], Awaitable[_T]],
    view: Callable[[_T], RenderableType],
    document: Callable[[_T], object],
    *,
    relevant: Callable[[_T], object] = identity,
    every_seconds: float = _EVERY_SECONDS,
) -> Never:
    """Read a state again and again. Redraw `view` on a terminal; print a changed state to a pipe.

    A state has changed if `relevant(state)` has. When the reader of the pipe has gone, raise BrokenPipeError.
    """
    if output.json or not output.console.is_terminal:
        printed: object = None
        while True:
            state = await read()
            if (now := relevant(state)) != printed:
                printed = now
                print_state(output, state, view, document)
            await asyncio.sleep(every_seconds)
            if _reader_has_gone():
                raise BrokenPipeError
    with Live(console=output.console, auto_refresh=False) as live:
        while True:
            live.update(view(await read()), refresh=True)
            await asyncio.sleep(every_seconds)


def print_state(
    output: CommandOutput, state: _T, view: Callable[[_T], RenderableType], document: Callable[[_T], object]
) -> None:
    """Print a state once, as a view for a person or as JSON."""
    if output.json:
        output.document(document(state))
    else:
        output.console.print(view(state))


def count_hidden_rows(console: Console, rows: Sequence[_T], view: Callable[[Sequence[_T]], RenderableType]) -> int:
    """Return how many of the first rows to leave out, so that the last rows fit on the terminal; 0 for a pipe."""
    if not console.is_terminal or not rows:
        return 0

    def fits(dropped: int) -> bool:
        return len(console.render_lines(view(rows[dropped:]), pad=False)) < console.height

    return bisect_left(range(len(rows) - 1), True, key=fits)  # noqa: FBT003 - the first True is searched


def _reader_has_gone() -> bool:
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    poll = select.poll()
    # poll() always reports errors, so no event is requested.
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
