"""The configuration of a process under test."""

from typing import Literal

import msgspec

# A steady worker gets no faults, so only the bus can cause what happens to its work.
Role = Literal["publisher", "worker", "steady"]


class ProcessConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of one process. It is sent by standard input, because the URL may contain a password."""

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
