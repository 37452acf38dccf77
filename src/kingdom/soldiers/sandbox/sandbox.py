"""The description of a sandbox; `bubblewrap.py` enforces it."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kingdom.soldiers.files.disk_quota import DiskQuota

MODEL_PROXY_PORT = 8099
EGRESS_PORT = 8098
# The paths of the two sockets inside of the sandbox.
_MODEL_PROXY, _EGRESS = "/run/kingdom/gate", "/run/kingdom/egress"


class SandboxProfile(StrEnum):
    """How strictly a program is isolated: `strict` has no network, `dev` has one, and `off` means no isolation."""

    STRICT = "strict"
    DEV = "dev"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimits:
    """Limits for a program and its descendants; None means no limit."""

    memory_bytes: int | None = None
    processes: int | None = None
    file_bytes: int | None = None
    cpu_seconds: int | None = None


AGENT_LIMITS = ResourceLimits(memory_bytes=8 << 30, processes=1024, file_bytes=4 << 30)


@dataclass(frozen=True, slots=True)
class PortForward:
    """A loopback port inside of the sandbox that leads to a unix socket, with the socket's path on either side."""

    port: int
    outside: Path
    inside: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """The paths, sockets and limits of a program. It sees only these paths and the system, which is read-only.

    If paths are nested, the inner path decides. A path in both `readable` and `writable` is read-only. Each of the
    `overlays` is a file and the path where the program sees it, read-only. `model_socket` and `egress_socket`
    lead to the two proxies, for a program without a network. `url` is where the program finds the model proxy. `disk`
    limits the disk space of the run.
    """

    profile: SandboxProfile
    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    overlays: tuple[tuple[Path, Path], ...] = ()
    model_socket: Path | None = None
    egress_socket: Path | None = None
    url: str = f"http://127.0.0.1:{MODEL_PROXY_PORT}"
    limits: ResourceLimits = ResourceLimits()
    disk: DiskQuota | None = None

    @property
    def port_forwards(self) -> tuple[PortForward, ...]:
        """Return the ports by which a program without a network reaches sockets of the host."""
        if self.profile is not SandboxProfile.STRICT:
            return ()
        known = ((MODEL_PROXY_PORT, self.model_socket, _MODEL_PROXY), (EGRESS_PORT, self.egress_socket, _EGRESS))
        return tuple(PortForward(port, outside, inside) for port, outside, inside in known if outside is not None)
