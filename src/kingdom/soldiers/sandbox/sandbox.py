"""What a program may see and write, as data; bubblewrap makes it true."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

PORT = 8099


class Profile(StrEnum):
    """How much a program is kept from."""

    STRICT = "strict"
    DEV = "dev"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a program and all that it starts may use up at most."""

    memory_bytes: int | None = None
    processes: int | None = None
    file_bytes: int | None = None
    cpu_seconds: int | None = None


AGENT_LIMITS = Limits(memory_bytes=8 << 30, processes=1024, file_bytes=4 << 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """What a program may see: the system and `readable` for reading, `writable` for writing, nothing else.

    Where one path lies in another the inner one counts, and of the same path in both the reading. `covers` are files,
    each with the path of another in whose place the program sees it, for reading. `socket` is the one
    way out, for a program with a network of its own; `url` is where the program finds the gate of the house.
    """

    profile: Profile
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    covers: tuple[tuple[Path, Path], ...] = ()
    socket: Path | None = None
    url: str = f"http://127.0.0.1:{PORT}"
    limits: Limits = Limits()
