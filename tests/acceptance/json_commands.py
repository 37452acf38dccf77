"""Runs commands in this process with --json, and checks each printed line against the declaration of its command."""

import contextlib
import io
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from jsonschema import Draft202012Validator, FormatChecker  # type: ignore[import-untyped]

from kingdom.cli.framework.json_result import JsonForm
from kingdom.cli.nouns import NOUNS
from kingdom.cli.reference.commands import commands_of
from kingdom.cli.reference.shapes import Shapes, every_shape
from tests.acceptance.terminal import Running

COMMANDS = {name: command for noun in NOUNS for name, command in commands_of(noun)}


class ShapeChecker:
    """Checks that a printed document has exactly the fields that its command declares."""

    def __init__(self, known: Shapes) -> None:
        self._answers = known.answers
        closed = {name: {"additionalProperties": False, **shape} for name, shape in known.shapes.items()}
        self._validators = {
            name: Draft202012Validator({**schema, "$defs": closed}, format_checker=FormatChecker())
            for name, schema in known.schemas.items()
        }

    def check(self, name: str, line: str) -> Any:
        """Return the document of a printed line. Raise an error if it differs from the declaration of the command."""
        document = json.loads(line)
        self._validators[name].validate(document)
        # The JSON schema does not check the format of times, but decoding to the type does.
        msgspec.json.decode(line, type=self._answers[name].document)
        return document

    def prints_one_line(self, name: str) -> bool:
        """Return whether a command always prints exactly one line."""
        return self._answers[name].form in (JsonForm.ONE, JsonForm.ARRAY)


class JsonCommands:
    """Runs commands with --json and checks the shape of their output."""

    def __init__(self) -> None:
        self.shaped = ShapeChecker(every_shape())
        self.ran: set[str] = set()

    def run_json(self, name: str, *words: str, text: str = "", code: int = 0) -> Any:
        """Run a command that prints one document, and return the document."""
        assert self.shaped.prints_one_line(name)
        (document,) = self.run_json_lines(name, *words, text=text, code=code)
        return document

    def run_json_lines(self, name: str, *words: str, text: str = "", code: int = 0) -> list[Any]:
        """Run a command and return the documents that it prints."""
        out, result = _run(name, [*words, "--json"], text)
        assert result == code, f"{name} ended with {result}: {out}"
        return self.read(name, out.splitlines())

    def end(self, name: str, running: Running) -> None:
        """End a running command, and check all its log lines."""
        running.process.terminate()
        assert running.ends() == 0
        self.read(name, [json.dumps(line) for line in running.logged()])

    def read(self, name: str, lines: Sequence[str]) -> list[Any]:
        """Return the documents of lines that a command has printed."""
        self.ran.add(name)
        return [self.shaped.check(name, line) for line in lines]


def _run(name: str, words: list[str], text: str) -> tuple[str, int]:
    with _streams(text) as out:
        result = COMMANDS[name].main(args=words, prog_name=f"kingdom {name}", standalone_mode=False)
        out.flush()
        printed = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    return printed, result or 0


@contextlib.contextmanager
def _streams(text: str) -> Iterator[io.TextIOWrapper]:
    """Give commands a readable standard input and a standard output that accepts bytes, as a real process has."""
    out, before = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True), sys.stdin
    sys.stdin = io.StringIO(text)
    try:
        with contextlib.redirect_stdout(out):
            yield out
    finally:
        sys.stdin = before
