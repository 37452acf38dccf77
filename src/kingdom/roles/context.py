"""The context that a role starts with, and the components that it runs."""

from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kingdom.bus.metrics import WorkerMetrics
from kingdom.bus.port import Bus
from kingdom.bus.worker import Runnable
from kingdom.court.heartbeat import Members
from kingdom.court.live_packages import LivePackages
from kingdom.realm import Realm
from kingdom.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleContext:
    """Everything that a role needs to start. `stack` is closed when the role has ended."""

    bus: Bus
    settings: Settings
    realm: Realm
    packages: LivePackages
    metrics: WorkerMetrics
    directory: Path
    stack: AsyncExitStack


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleComponents:
    """The components of a role: runnables that run until they are stopped, and background tasks.

    `members` returns the members of the role, such as the Generals, which have their own heartbeats.
    """

    runnables: tuple[Runnable, ...]
    background: tuple[Coroutine[Any, Any, None], ...] = ()
    members: Members = dict
