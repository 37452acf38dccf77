"""Finding processes by a mark in their environment, which everything they start inherits."""

from contextlib import suppress
from pathlib import Path

from tests.integration.running import eventually

MARK = "KINGDOM_TEST_MARK"


def marked(mark: str) -> list[str]:
    """Return the command lines of all living processes that carry a mark."""
    sought = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if sought in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((entry / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode())
    return found


async def until_runs(mark: str, words: str) -> None:
    """Wait until a marked process runs whose command line begins with these words."""

    async def runs() -> bool:
        return any(command.startswith(words) for command in marked(mark))

    await eventually(runs)


async def until_none(mark: str) -> None:
    """Wait until no marked process is left."""

    async def none() -> bool:
        return not marked(mark)

    await eventually(none)
