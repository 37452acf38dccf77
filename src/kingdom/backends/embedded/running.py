"""Using an embedded server: while somebody does it runs, and it is started again when it or its keeper dies."""

import asyncio
import fcntl
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import IO
from urllib.parse import quote

import structlog

from kingdom.backends.embedded.programs import programs_for, serving_account
from kingdom.backends.embedded.server_directory import (
    DATABASE,
    MISCONFIGURED,
    PORT,
    ROLE,
    ServerDirectory,
    open_lock,
    try_lock,
)
from kingdom.errors import KingdomError, Misconfigured, NotFound, Unavailable

_KEEPER = "kingdom.backends.embedded.keeper"
# A server that was killed may have to repeat much of what it did.
_PATIENCE_SECONDS = 150.0
_NAP_SECONDS = 0.05
_CONNECT_SECONDS = 1.0
_WATCH_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0
_log = structlog.get_logger("kingdom.backends")


@asynccontextmanager
async def running(place: ServerDirectory, *, create: bool = True) -> AsyncIterator[str]:
    """Yield the URL of the server of a place, which runs for as long as the block does."""
    place.refuse_if_not_ours()
    if not create and not place.is_made:
        raise NotFound(f"there is no store at {place.directory}")
    if not place.is_made:
        await asyncio.to_thread(_make_directory, place)
    with _opened_lock(place) as users:
        await _make_ready(place, users)
        watching = asyncio.create_task(_watch(place))
        try:
            host = quote(str(place.socket_file.parent), safe="")
            yield f"postgresql://{ROLE}@/{DATABASE}?host={host}&port={PORT}"
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def _opened_lock(place: ServerDirectory) -> IO[bytes]:
    try:
        return open_lock(place.users)
    except OSError as error:
        raise Misconfigured(f"{place.directory} cannot be written: {error.strerror}: name another directory") from error


def _make_directory(place: ServerDirectory) -> None:
    """Make the directory and what is missing above it; what is there stays as it is."""
    programs_for(place)
    new = [each for each in (place.directory, *place.directory.parents) if not each.exists()]
    account = serving_account(place)
    try:
        for each in reversed(new):
            with suppress(FileExistsError):
                each.mkdir()
                if account:
                    # The account of the server must come through.
                    each.chmod(0o711)
                elif each == place.directory:
                    each.chmod(0o700)
    except OSError as error:
        raise Misconfigured(f"{place.directory} cannot be made: {error.strerror}: name another directory") from error


async def _make_ready(place: ServerDirectory, users: IO[bytes]) -> None:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            # In the way is only a keeper that is just ending.
            while not try_lock(users, fcntl.LOCK_SH):  # noqa: ASYNC110 - nobody tells of a free lock
                await asyncio.sleep(_NAP_SECONDS)
            while not _answers(place):
                if not place.has_keeper():
                    await _start_keeper(place)
                await asyncio.sleep(_NAP_SECONDS)
    except TimeoutError as error:
        raise Unavailable(f"the embedded PostgreSQL of {place.directory} does not start: see {place.log}") from error


def _answers(place: ServerDirectory) -> bool:
    if not place.has_keeper() or not place.is_ready():
        return False
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.settimeout(_CONNECT_SECONDS)
        probe.connect(str(place.socket_file))
        return True
    return False


async def _start_keeper(place: ServerDirectory) -> None:
    # What lies in the current directory is no part of the program.
    words = ("-P", "-m", _KEEPER, os.fspath(place.directory), place.account)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    why = said.decode(errors="replace").strip()
    if process.returncode == MISCONFIGURED:
        raise Misconfigured(why)
    if process.returncode:
        raise Unavailable(why)


async def _watch(place: ServerDirectory) -> None:
    """Start another keeper whenever the last one was killed; pauses grow while that fails."""
    pause = _WATCH_SECONDS
    while True:
        await asyncio.sleep(pause)
        if place.has_keeper():
            pause = _WATCH_SECONDS
        else:
            try:
                await _start_keeper(place)
            except (KingdomError, OSError) as error:
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                _log.warning("the embedded server cannot be started again", error=str(error))
