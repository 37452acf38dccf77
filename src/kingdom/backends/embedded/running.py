"""Use an embedded server. Each process that uses it starts a keeper if none runs. The keeper runs the server."""

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
# After a crash, the recovery of the server may take long.
_READY_SECONDS = 150.0
_SLEEP_SECONDS = 0.05
_CONNECT_SECONDS = 1.0
# How often a process checks that a keeper runs. After a keeper fails to start, the wait is doubled up to the maximum.
_WATCH_SECONDS, _WATCH_SECONDS_MAX = 1.0, 30.0
_log = structlog.get_logger("kingdom.backends")


@asynccontextmanager
async def running_server(directory: ServerDirectory, *, create: bool = True) -> AsyncIterator[str]:
    """Run the server of a directory during the block, and yield its URL.

    If there is no server yet, create one, or raise NotFound if `create` is false.
    """
    directory.check_usable()
    if not create and not directory.is_created:
        raise NotFound(f"there is no store at {directory.path}")
    if not directory.is_created:
        await asyncio.to_thread(_create_directory, directory)
    with _open_users_lock(directory) as users:
        await _make_ready(directory, users)
        watching = asyncio.create_task(_watch_keeper(directory))
        try:
            host = quote(str(directory.socket_file.parent), safe="")
            yield f"postgresql://{ROLE}@/{DATABASE}?host={host}&port={PORT}"
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def _open_users_lock(directory: ServerDirectory) -> IO[bytes]:
    try:
        return open_lock(directory.users_lock)
    except OSError as error:
        raise Misconfigured(f"cannot write to {directory.path}: {error.strerror}: use another directory") from error


def _create_directory(directory: ServerDirectory) -> None:
    """Create the directory and its missing parents."""
    # Raise an error before anything is created if the programs are not installed.
    programs_for(directory)
    new = [each for each in (directory.path, *directory.path.parents) if not each.exists()]
    account = serving_account(directory)
    try:
        for each in reversed(new):
            with suppress(FileExistsError):
                each.mkdir()
                if account:
                    # The account of the server must be able to enter the directory.
                    each.chmod(0o711)
                elif each == directory.path:
                    each.chmod(0o700)
    except OSError as error:
        raise Misconfigured(f"cannot create {directory.path}: {error.strerror}: use another directory") from error


async def _make_ready(directory: ServerDirectory, users: IO[bytes]) -> None:
    """Lock the file as a user of the server, and wait until the server answers."""
    try:
        async with asyncio.timeout(_READY_SECONDS):
            # A keeper that stops its server has locked the file exclusively. Wait until this keeper has ended.
            while not try_lock(users, fcntl.LOCK_SH):  # noqa: ASYNC110 - flock has no notification
                await asyncio.sleep(_SLEEP_SECONDS)
            while not _server_answers(directory):
                if not directory.has_keeper():
                    await _start_keeper(directory)
                await asyncio.sleep(_SLEEP_SECONDS)
    except TimeoutError as error:
        raise Unavailable(f"the embedded PostgreSQL of {directory.path} does not start: see {directory.log}") from error


def _server_answers(directory: ServerDirectory) -> bool:
    if not directory.has_keeper() or not directory.is_ready():
        return False
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.settimeout(_CONNECT_SECONDS)
        probe.connect(str(directory.socket_file))
        return True
    return False


async def _start_keeper(directory: ServerDirectory) -> None:
    # With -P, Python does not import modules from the current directory.
    arguments = ("-P", "-m", _KEEPER, os.fspath(directory.path), directory.account)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, output = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    reason = output.decode(errors="replace").strip()
    if process.returncode == MISCONFIGURED:
        raise Misconfigured(reason)
    if process.returncode:
        raise Unavailable(reason)


async def _watch_keeper(directory: ServerDirectory) -> None:
    """Start a new keeper whenever none runs. Wait longer after each failure."""
    pause = _WATCH_SECONDS
    while True:
        await asyncio.sleep(pause)
        if directory.has_keeper():
            pause = _WATCH_SECONDS
        else:
            try:
                await _start_keeper(directory)
            except (KingdomError, OSError) as error:
                pause = min(2 * pause, _WATCH_SECONDS_MAX)
                _log.warning("cannot restart the embedded server", error=str(error))
