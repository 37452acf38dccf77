"""A directory for an embedded server, the processes in it, and a process that uses it: `python -m … URL`."""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import psutil

from kingdom.bootstrap import server_url
from tests import warm
from tests.integration.processes import Child, say
from tests.integration.running import eventually

IS_ROOT = os.geteuid() == 0
LEFT = {"data", "keeper.lock", "programs", "server.lock", "server.log", "users.lock"}


@contextmanager
def open_room() -> Iterator[Path]:
    """Yield a directory that other accounts can reach, because root runs the server under another account."""
    with tempfile.TemporaryDirectory(prefix="kingdom-embedded-") as room:
        path = Path(room)
        path.chmod(0o755)
        yield path


def keepers_and_servers(directory: Path) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """Return the keepers and servers of a directory, including a process that is starting a keeper."""
    keepers, servers = [], []
    for process in psutil.process_iter():
        # The process may end in the meantime.
        with suppress(psutil.Error):
            words = process.cmdline()
            if process.status() != psutil.STATUS_ZOMBIE:
                keepers += [process] if str(directory) in words else []
                servers += [process] if str(directory / "data") in words else []
    return keepers, servers


async def keeper_and_server(directory: Path, *gone: psutil.Process) -> tuple[psutil.Process, psutil.Process]:
    """Return keeper and server, as soon as both run and no others do."""
    found: list[psutil.Process] = []

    async def both() -> bool:
        keepers, servers = keepers_and_servers(directory)
        found[:] = [*keepers, *servers]
        return len(keepers) == len(servers) == 1 and not {*gone} & {*found}

    await eventually(both)
    return found[0], found[1]


async def until_nothing_is_left(directory: Path, *, soon: bool = False) -> None:
    """Wait until nothing runs in a directory, and check that only the expected files remain."""
    if soon:
        for keeper in keepers_and_servers(directory)[0]:
            keeper.terminate()

    async def nothing() -> bool:
        return keepers_and_servers(directory) == ([], [])

    await eventually(nothing)
    assert {path.name for path in directory.iterdir()} <= LEFT


def modes(*paths: Path) -> dict[Path, tuple[int, int, int]]:
    """Return the permissions and owners of paths."""
    return {path: (path.stat().st_mode, path.stat().st_uid, path.stat().st_gid) for path in paths}


@asynccontextmanager
async def user_process(url: str) -> AsyncIterator[Child]:
    """Run a process that uses a server until it is killed."""
    child = Child(await warm.start("tests.integration.embedded", url, stdin=True, stdout=True))
    try:
        yield child
    finally:
        await child.end()


async def _use(url: str) -> None:
    async with server_url(url):
        say("uses it")
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_use(sys.argv[1]))
