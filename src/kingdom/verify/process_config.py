"""What a process under test is told."""

from typing import Literal

import msgspec

# A steady worker is never struck, so what happens to its work is the doing of the bus alone.
Role = Literal["publisher", "worker", "steady"]


class ProcessConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is told; the URL may hold a password, so it never stands on a command line."""

    role: Role
    name: str
    url: str
    schema: str
    directory: str
    target_port: int
    seed: int
    lease_seconds: float
    trouble: float
    pause_seconds: float
    steady_lease_seconds: float = 0.0
