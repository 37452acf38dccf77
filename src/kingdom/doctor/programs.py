"""Asking a program for its version."""

import asyncio
import re
from asyncio.subprocess import DEVNULL, PIPE, STDOUT

from kingdom.soldiers.process_table import end_group
from kingdom.text import with_reason

_VERSION = re.compile(r"\d+(?:\.\d+)+\S*")
_OUTPUT_MAX, _WORDS_MAX = 5000, 200


async def said_by(*command: str) -> tuple[int, str]:
    """Run a program to its end; returns its exit code and what it wrote. Who stops waiting ends it and its children."""
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, start_new_session=True)
    )
    try:
        output, _ = await (await asyncio.shield(starting)).communicate()
    finally:
        # Half a start cannot be undone: who stops waiting waits for the whole.
        process = await starting
        await end_group(process.pid)
        await process.wait()
    return process.returncode or 0, output.decode(errors="replace").strip()[:_OUTPUT_MAX]


def version_in(words: str) -> str:
    """Return the first thing that looks like a version."""
    found = _VERSION.search(words)
    return found[0] if found else ""


def how_it_ended(command: str, code: int, words: str) -> str:
    """Return what a person is told of a program that did not do what it should."""
    return with_reason(f"{command} ended with {code}", words[:_WORDS_MAX])


def as_numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, to be compared."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()
