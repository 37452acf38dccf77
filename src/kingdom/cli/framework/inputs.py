"""Parses what people type: durations, JSON payloads, attributes and lines of events."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import msgspec
import typer

from kingdom.bus.envelope import Envelope
from kingdom.errors import MalformedEvent, Misconfigured

STANDARD_INPUT = "-"
# Longer durations would overflow datetime arithmetic.
DAYS_MAX = 36500
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min|m|h|d)?")
_UNITS = {"ms": 0.001, "s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}


def duration(text: str) -> timedelta:
    """Parse `30`, `30s`, `5m`, `2h` or `1d`."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a duration: write 30s, 5m, 2h or 1d.")
    seconds = float(match[1]) * _UNITS[match[2] or "s"]
    if seconds > DAYS_MAX * _UNITS["d"]:
        raise typer.BadParameter(f"{text!r} is too long: the maximum is {DAYS_MAX}d.")
    return timedelta(seconds=seconds)


def payload(text: str) -> dict[str, Any]:
    """Parse a JSON object: the text itself, `@file`, or `-` for standard input."""
    if text == STANDARD_INPUT or text.startswith("@"):
        with opened(text.removeprefix("@")) as file:
            text = file.read()
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise typer.BadParameter(f"the payload is not a JSON object: {error}") from error


def attributes(pairs: Sequence[str]) -> dict[str, str]:
    """Parse `name=value` pairs."""
    split = [pair.partition("=") for pair in pairs]
    if wrong := [name for name, equals, _ in split if not equals]:
        raise typer.BadParameter(f"{wrong[0]!r} is not an attribute: write name=value.")
    return {name: value for name, _, value in split}


@contextmanager
def opened(name: str) -> Iterator[TextIO]:
    """Open a file for reading, or standard input for `-`."""
    try:
        file = nullcontext(sys.stdin) if name == STANDARD_INPUT else Path(name).open(encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError as error:
        raise typer.BadParameter(f"{name} cannot be read: {error.strerror}.") from error
    try:
        with file as lines:
            yield lines
    except UnicodeError as error:
        what = "standard input" if name == STANDARD_INPUT else name
        raise Misconfigured(f"{what} is not UTF-8: {error}") from error


def envelopes(lines: TextIO, defaults: dict[str, Any]) -> Iterator[Envelope]:
    """Parse one event in its wire format per line. `defaults` has the values of missing fields."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                wire = msgspec.json.decode(line, type=dict[str, Any])
                yield Envelope.from_wire({**defaults, **wire})
            except (msgspec.MsgspecError, MalformedEvent) as error:
                raise MalformedEvent(f"line {number} is not an event: {error}") from error
