"""What a role is given to begin, and what it makes of it."""

from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kingdom.bus.metrics import WorkerMetrics
from kingdom.bus.port import Bus
from kingdom.bus.worker import Runnable
from kingdom.court.live_packages import LivePackages
from kingdom.realm import Realm
from kingdom.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What a role needs to begin: the store, the settings, the Generals, and where it counts and writes for people.

    What `stack` holds is closed when the role has ended.
    """

    bus: Bus
    settings: Settings
    realm: Realm
    packages: LivePackages
    metrics: WorkerMetrics
    directory: Path
    stack: AsyncExitStack


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """What plays a role: parts that run until they are stopped, and what goes on beside them."""

    parts: tuple[Runnable, ...]
    beside: tuple[Coroutine[Any, Any, None], ...] = ()
