"""How commands answer: tables and sentences for people, JSON for machines."""

import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, Literal, Protocol

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kingdom.settings import read_environment
from kingdom.text import printable

_encode = msgspec.json.Encoder().encode
# A pipe has no width: lines must not be cut for it.
_PIPE_WIDTH = 1000
# Columns of what people copy: broken over lines it would be of no use.
_COPIED = frozenset({"id", "task", "assignment", "event", "petition", "checkpoint"})


class Advance(Protocol):
    """Moves a progress bar."""

    def __call__(self, steps: int = 1, /) -> None:
        """Go some steps further."""


class Output:
    """Where a command's answer goes: standard output; standard error has notes and progress only."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self.console = _console(stderr=False)
        self._errors = _console(stderr=True)

    def document(self, value: object) -> None:
        """Write one JSON document on a line of its own."""
        typer.echo(_encode(value))
        sys.stdout.flush()

    def say(self, *sentences: str) -> None:
        """Tell a person; a machine reads the document instead."""
        if not self.json:
            for sentence in sentences:
                self.console.print(Text(printable(sentence)), soft_wrap=True)

    def note(self, sentence: str) -> None:
        """Say what matters to person and machine alike, on standard error."""
        self._errors.print(Text(printable(sentence), style="yellow"), soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Show a table to a person."""
        self.console.print(table(columns, rows))

    @contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Advance]:
        """Show a progress bar while the block runs, if a person is looking."""
        # Few commands need it, and it takes long to load.
        progress = import_module("rich.progress")
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
        """Show what is waited for while the block runs, if a person is looking."""
        if self.json or not self._errors.is_terminal:
            yield
            return
        with self._errors.status(Text(printable(what))):
            yield

    def confirm(self, question: str, *, yes: bool) -> None:
        """Go on only with a person's consent, given here or beforehand."""
        if yes:
            return
        if self.json or not sys.stdin.isatty():
            raise typer.BadParameter(f"{question} Nobody is here to answer: say --yes.")
        with at_the_keyboard():
            typer.confirm(question, abort=True, err=True)


@contextmanager
def at_the_keyboard() -> Iterator[None]:
    """Let Ctrl-C end a question at once: an event loop would wait for the answer first."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table; numbers stand right, ids stay whole, unprintable characters are shown, not sent."""
    listed = [list(row) for row in rows]
    shown = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for number, column in enumerate(columns):
        numeric = bool(listed) and all(_is_number(row[number]) for row in listed)
        whole = column in _COPIED
        shown.add_column(column, justify="right" if numeric else "left", overflow="fold", no_wrap=whole)
    for row in listed:
        shown.add_row(*(cell if isinstance(cell, Text) else Text(printable(words(cell))) for cell in row))
    return shown


def shape(thing: Any) -> dict[str, Any]:
    """Return a dataclass as the JSON object of our machine output: its fields in camelCase."""
    return {_camel(each.name): getattr(thing, each.name) for each in fields(thing)}


def ago(seconds: float) -> str:
    """Return a span of time as a person would say it."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def words(cell: object) -> str:
    """Return a value as a person reads it; moments in the person's own time zone."""
    match cell:
        case None:
            return "-"
        case datetime():
            return cell.astimezone().isoformat(sep=" ", timespec="seconds")
        case timedelta():
            return ago(cell.total_seconds())
    return str(cell)


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) or str(cell).removesuffix("+").isdigit()


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    # By itself it would keep what is bold or underlined.
    colours: Literal["auto"] | None = None if read_environment("NO_COLOR") else "auto"
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(stderr=stderr, highlight=False, width=width, color_system=colours)
