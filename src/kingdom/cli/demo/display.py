"""Where the demo is shown: a screen on a terminal, otherwise plain lines."""

import asyncio
import sys
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live

from kingdom.cli.demo.view import question_view, screen_view
from kingdom.court.questions import HumanQuestion
from kingdom.demo.display import DemoDisplay
from kingdom.demo.narration import NarrationLine
from kingdom.demo.store_watcher import DemoState
from kingdom.text import printable

# After this time, the demo answers its own question.
_ANSWER_SECONDS = 45.0
# The time to read the screen after each step.
_READ_SECONDS = 4.0
_LINES_KEPT = 200
_WHO_WIDTH = 12


class DemoScreen(DemoDisplay):
    """A terminal: events above, the current state below."""

    def __init__(self, console: Console, *, fast: bool) -> None:
        self._console = console
        self._fast = fast
        self.pause_seconds = 0.0 if fast else _READ_SECONDS
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._part = ("", "")
        self._lines: deque[NarrationLine] = deque(maxlen=_LINES_KEPT)
        self._state = DemoState()
        self._is_asking = False

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def begin(self, number: int, total: int, title: str, words: str) -> None:
        """See DemoDisplay."""
        self._part = (f"{number}/{total}  {title}", words)
        self._draw()

    def tell(self, line: NarrationLine) -> None:
        """See DemoDisplay."""
        self._lines.append(line)

    def show(self, state: DemoState) -> None:
        """See DemoDisplay."""
        self._state = state
        self._draw()

    async def ask(self, ask: HumanQuestion, default: str) -> str | None:
        """See DemoDisplay."""
        if self._fast:
            return None
        self._is_asking = True
        self._live.stop()
        self._console.print(question_view(ask, default, _ANSWER_SECONDS))
        try:
            with suppress(TimeoutError):
                return await read_line("Your answer: ", _ANSWER_SECONDS) or None
            return None
        finally:
            self._live.start()
            self._is_asking = False

    def _draw(self) -> None:
        if self._is_asking:
            return
        title, words = self._part
        view = screen_view(title, words, self._lines, self._state, height=self._console.height)
        self._live.update(view, refresh=True)


class DemoLines(DemoDisplay):
    """A pipe or file: one line per event. It never asks for an answer."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.flush()

    def begin(self, number: int, total: int, title: str, words: str) -> None:
        """See DemoDisplay."""
        self._write(f"\n{number}/{total} {title}. {words}")

    def tell(self, line: NarrationLine) -> None:
        """See DemoDisplay."""
        self._write(f"{line.who:<{_WHO_WIDTH}}{line.what}")

    def show(self, state: DemoState) -> None:
        """See DemoDisplay."""

    async def ask(self, ask: HumanQuestion, default: str) -> str | None:
        """See DemoDisplay."""
        del ask, default
        return None

    def _write(self, text: str) -> None:
        self._stream.write(f"{printable(text)}\n")
        self._stream.flush()


async def read_line(prompt: str, seconds: float | None) -> str:
    """Return the line that a person types. Raise TimeoutError after `seconds`; None means no limit."""
    sys.stdout.write(prompt)
    sys.stdout.flush()
    loop, typed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin, typed.set)
    try:
        async with asyncio.timeout(seconds):
            await typed.wait()
        return sys.stdin.readline().strip()
    finally:
        loop.remove_reader(sys.stdin)
