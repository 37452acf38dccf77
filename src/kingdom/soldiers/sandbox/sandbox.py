"""What a program may see and write, as data; bubblewrap makes it true."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kingdom.soldiers.disk_quota import DiskQuota

MODEL_PROXY_PORT = 8099
EGRESS_PORT = 8098
# Where the sockets of the ways out lie inside.
_GATE, _EGRESS = "/run/kingdom/gate", "/run/kingdom/egress"


class SandboxProfile(StrEnum):
    """How much a program is kept from."""

    STRICT = "strict"
    DEV = "dev"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimits:
    """What a program and all that it starts may use up at most."""

    memory_bytes: int | None = None
    processes: int | None = None
    file_bytes: int | None = None
    cpu_seconds: int | None = None


AGENT_LIMITS = ResourceLimits(memory_bytes=8 << 30, processes=1024, file_bytes=4 << 30)


@dataclass(frozen=True, slots=True)
class PortForward:
    """A port on the loopback of a sandbox that leads to a socket, which has one path outside and another inside."""

    port: int
    outside: Path
    inside: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """What a program may see: the system and `readable` for reading, `writable` for writing, nothing else.

    Where one path lies in another the inner one counts, and of the same path in both the reading. `overlays` are files,
    each with the path of another in whose place the program sees it, for reading. `socket` is the way to the model, for
    a program with a network of its own; `url` is where the program finds the gate of the house. `egress` is the socket
    of a proxy that leads to hosts which the operator has named. `disk` is what the run of the program may take of it.
    """

    profile: SandboxProfile
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    overlays: tuple[tuple[Path, Path], ...] = ()
    socket: Path | None = None
    egress: Path | None = None
    url: str = f"http://127.0.0.1:{MODEL_PROXY_PORT}"
    limits: ResourceLimits = ResourceLimits()
    disk: DiskQuota | None = None

    @property
    def port_forwards(self) -> tuple[PortForward, ...]:
        """Return how a program without a network reaches sockets of the host."""
        if self.profile is not SandboxProfile.STRICT:
            return ()
        known = ((MODEL_PROXY_PORT, self.socket, _GATE), (EGRESS_PORT, self.egress, _EGRESS))
        return tuple(PortForward(port, outside, inside) for port, outside, inside in known if outside is not None)
