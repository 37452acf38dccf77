"""`--watch`: looking again and again, until somebody has seen enough."""

import asyncio
import select
import sys
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Never, TypeVar

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from kingdom.cli.shared.output import CommandOutput

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until interrupted.")]
_EVERY_SECONDS = 2.0
_T = TypeVar("_T")


def itself(seen: object) -> object:
    """Return what was seen, all of which matters."""
    return seen


async def watch(
    output: CommandOutput,
    look: Callable[[], Awaitable[_T]],
    view: Callable[[_T], RenderableType],
    document: Callable[[_T], object],
    *,
    what_matters: Callable[[_T], object] = itself,
    every_seconds: float = _EVERY_SECONDS,
) -> Never:
    """Show what is seen on a terminal, anew each time; a pipe gets it whenever something that matters has changed.

    It ends as a write to a pipe would when nobody reads any more, even if there is nothing to write.
    """
    if output.json or not output.console.is_terminal:
        told: object = None
        while True:
            seen = await look()
            if (now := what_matters(seen)) != told:
                told = now
                tell(output, seen, view, document)
            await asyncio.sleep(every_seconds)
            if _reader_has_gone():
                raise BrokenPipeError
    with Live(console=output.console, auto_refresh=False) as live:
        while True:
            live.update(view(await look()), refresh=True)
            await asyncio.sleep(every_seconds)


def tell(
    output: CommandOutput, seen: _T, view: Callable[[_T], RenderableType], document: Callable[[_T], object]
) -> None:
    """Show once what is seen, to a person or a machine."""
    if output.json:
        output.document(document(seen))
    else:
        output.console.print(view(seen))


def hidden(console: Console, rows: Sequence[_T], view: Callable[[Sequence[_T]], RenderableType]) -> int:
    """Return how many of the first rows a terminal has no room for, so that the last ones are seen; a pipe has room."""
    if not console.is_terminal or not rows:
        return 0

    def fits(dropped: int) -> bool:
        return len(console.render_lines(view(rows[dropped:]), pad=False)) < console.height

    return bisect_left(range(len(rows) - 1), True, key=fits)  # noqa: FBT003 - what is looked for


def _reader_has_gone() -> bool:
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    poll = select.poll()
    # Errors are told without being asked for.
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
