"""Run a program and parse its version."""

import asyncio
import re
from asyncio.subprocess import DEVNULL, PIPE, STDOUT

from kingdom.soldiers.processes.process_table import kill_group
from kingdom.text import with_reason

_VERSION = re.compile(r"\d+(?:\.\d+)+\S*")
_OUTPUT_LENGTH_MAX, _REASON_LENGTH_MAX = 5000, 200


async def run_program(*command: str) -> tuple[int, str]:
    """Run a program and return its exit code and output; a cancellation kills the program and its children."""
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, start_new_session=True)
    )
    try:
        output, _ = await (await asyncio.shield(starting)).communicate()
    finally:
        # A start cannot be cancelled halfway, so wait for the process before killing it.
        process = await starting
        await kill_group(process.pid)
        await process.wait()
    return process.returncode or 0, output.decode(errors="replace").strip()[:_OUTPUT_LENGTH_MAX]


def find_version(output: str) -> str:
    """Return the first part of an output that looks like a version."""
    found = _VERSION.search(output)
    return found[0] if found else ""


def describe_failure(command: str, code: int, output: str) -> str:
    """Return the message for a program that failed."""
    return with_reason(f"{command} ended with {code}", output[:_REASON_LENGTH_MAX])


def parse_version(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, for comparison."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()
