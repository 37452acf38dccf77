"""The output of commands: tables and sentences for people, JSON for programs."""

import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Literal, Protocol

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kingdom.settings import read_environment
from kingdom.text import format_duration, printable

_encode = msgspec.json.Encoder().encode
# A pipe has no width. This many characters per line cut nothing off.
_PIPE_WIDTH = 1000
# People copy the values of these columns, so each value stays on one line.
_COPIED_COLUMNS = frozenset({"id", "task", "assignment", "event", "petition", "checkpoint"})


class AdvanceProgress(Protocol):
    """A function that advances a progress bar."""

    def __call__(self, steps: int = 1, /) -> None:
        """Advance by some steps."""


class CommandOutput:
    """Prints results on standard output, and notes and progress on standard error."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self.console = _console(stderr=False)
        self._errors = _console(stderr=True)

    def document(self, value: object) -> None:
        """Write one JSON document as one line."""
        typer.echo(_encode(value))
        sys.stdout.flush()

    def say(self, *sentences: str) -> None:
        """Print sentences for a person. With --json, print nothing."""
        if not self.json:
            for sentence in sentences:
                self.console.print(Text(printable(sentence)), soft_wrap=True)

    def note(self, sentence: str) -> None:
        """Print a sentence on standard error, also with --json."""
        self._errors.print(Text(printable(sentence), style="yellow"), soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a table for a person."""
        self.console.print(table(columns, rows))

    def note_older(self, what: str, limit: int) -> None:
        """Print that a list shows only its newest items."""
        self.note(f"Older {what} are not shown: add --limit {2 * limit}")

    @contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[AdvanceProgress]:
        """Show a progress bar on a terminal while the block runs."""
        # Imported on use, since it loads slowly.
        from rich import progress

        bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            console=self._errors,
            transient=True,
            disable=self.json or not self._errors.is_terminal,
        )
        with bar:
            task = bar.add_task(what, total=total)

            def advance(steps: int = 1, /) -> None:
                bar.advance(task, steps)

            yield advance

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Show a waiting message on a terminal while the block runs."""
        if self.json or not self._errors.is_terminal:
            yield
            return
        with self._errors.status(Text(printable(what))):
            yield

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask a person to confirm, unless `yes` is set."""
        if yes:
            return
        if self.json or not sys.stdin.isatty():
            raise typer.BadParameter(f"{question} This cannot be asked without a terminal: add --yes.")
        with interruptible_prompt():
            typer.confirm(question, abort=True, err=True)


@contextmanager
def interruptible_prompt() -> Iterator[None]:
    """Make Ctrl-C end a prompt at once; an event loop would wait for the answer first."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table with numbers aligned right, ids unbroken and unprintable characters escaped."""
    listed = [list(row) for row in rows]
    shown = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for number, column in enumerate(columns):
        numeric = bool(listed) and all(_is_number(row[number]) for row in listed)
        whole = column in _COPIED_COLUMNS
        shown.add_column(column, justify="right" if numeric else "left", overflow="fold", no_wrap=whole)
    for row in listed:
        shown.add_row(*(cell if isinstance(cell, Text) else Text(printable(format_cell(cell))) for cell in row))
    return shown


def format_cell(cell: object) -> str:
    """Format a value for a person; times are in the local time zone."""
    match cell:
        case None:
            return "-"
        case datetime():
            return cell.astimezone().isoformat(sep=" ", timespec="seconds")
        case timedelta():
            return format_duration(cell.total_seconds())
    return str(cell)


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) or str(cell).removesuffix("+").isdigit()


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    # With NO_COLOR, rich alone would still print bold and underlined text.
    colors: Literal["auto"] | None = None if read_environment("NO_COLOR") else "auto"
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(stderr=stderr, highlight=False, width=width, color_system=colors)
