"""Reading what people type: durations, JSON payloads, lines of events."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import msgspec
import typer

from kingdom.bus.envelope import Envelope
from kingdom.errors import MalformedEvent

STANDARD_INPUT = "-"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min|m|h|d)?")
_UNITS = {"ms": 0.001, "s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}


def duration(text: str) -> timedelta:
    """Read `30`, `30s`, `5m`, `2h` or `1d`."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no duration: write 30s, 5m, 2h or 1d.")
    return timedelta(seconds=float(match[1]) * _UNITS[match[2] or "s"])


def payload(text: str) -> dict[str, Any]:
    """Read a JSON object: the text itself, `@file`, or `-` for standard input."""
    if text == STANDARD_INPUT:
        text = sys.stdin.read()
    elif text.startswith("@"):
        with opened(text[1:]) as file:
            text = file.read()
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise typer.BadParameter(f"the payload is no JSON object: {error}") from error


def attributes(pairs: Sequence[str]) -> dict[str, str]:
    """Read `name=value` pairs."""
    split = [pair.partition("=") for pair in pairs]
    if wrong := [name for name, equals, _ in split if not equals]:
        raise typer.BadParameter(f"{wrong[0]!r} is no attribute: write name=value.")
    return {name: value for name, _, value in split}


@contextmanager
def opened(name: str) -> Iterator[TextIO]:
    """Open a file for reading, or standard input for `-`."""
    if name == STANDARD_INPUT:
        yield sys.stdin
        return
    try:
        file = Path(name).open(encoding="utf-8")  # noqa: SIM115 - closed below, and only opening it may be the user's fault
    except OSError as error:
        raise typer.BadParameter(f"{name} cannot be read: {error.strerror}.") from error
    with file:
        yield file


def envelopes(lines: TextIO, defaults: dict[str, Any]) -> Iterator[Envelope]:
    """Read one event per line, each as it looks on the wire; `defaults` fill in what a line leaves out."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                wire = msgspec.json.decode(line, type=dict[str, Any])
                yield Envelope.from_wire({**defaults, **wire})
            except (msgspec.MsgspecError, MalformedEvent) as error:
                raise MalformedEvent(f"line {number} is no event: {error}") from error
