"""Units: deliveries of one lease that a worker handles one after another."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kingdom.bus.delivery import Delivery
from kingdom.bus.worker.keeper import HeldLease


@dataclass(slots=True, eq=False)
class Unit:
    """Deliveries of one lease that are handled one after another.

    `open` has the deliveries that are neither settled nor lost, and `cancelled` the positions that an operator has
    cancelled. `running` is the position whose handler runs now. `calls_outside` means that the handlers call
    outside systems. The unit starts when `slot` is set. `lost` means that the lease was lost. `stopped` means that
    the worker has stopped the unit.
    """

    lease: HeldLease
    deliveries: Sequence[Delivery]
    calls_outside: bool
    open: dict[int, Delivery] = field(init=False)
    cancelled: set[int] = field(default_factory=set)
    running: int | None = None
    slot: asyncio.Event = field(default_factory=asyncio.Event)
    lost: bool = False
    stopped: bool = False
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.open = {delivery.position: delivery for delivery in self.deliveries}

    @property
    def stream(self) -> str:
        """Return the stream of the deliveries."""
        return self.deliveries[0].stream

    def adopt_task(self) -> None:
        """Make the current task the task of the unit. Raise CancelledError if the unit must not run any more.

        `task` is None before this call, so `cancel` cannot cancel a task that has not started. asyncio would never run
        such a task, and the deliveries of the unit would not be released.
        """
        self.task = asyncio.current_task()
        if self.lost or self.stopped:
            raise asyncio.CancelledError

    def stop(self) -> None:
        """Cancel the unit, but only once: a second cancellation would interrupt the release of its deliveries."""
        if not self.stopped:
            self.stopped = True
            self.cancel()

    def uncancel(self) -> None:
        """Let the task of the unit continue after the cancellation of one event."""
        if self.task:
            self.task.uncancel()

    def cancel(self) -> None:
        """Cancel the task of the unit. A task that has not started checks `lost` and `stopped` in `adopt_task`."""
        if self.task:
            self.task.cancel()


def split_by_key(deliveries: Sequence[Delivery]) -> Iterable[list[Delivery]]:
    """Split claimed deliveries into lists: the deliveries of one key in order, or one delivery without a key."""
    by_key: dict[object, list[Delivery]] = {}
    for delivery in deliveries:
        by_key.setdefault(delivery.ordering_key or delivery.position, []).append(delivery)
    return by_key.values()


def join_into_groups(by_key: Iterable[list[Delivery]], size: int) -> Iterable[list[Delivery]]:
    """Join the lists of keys into groups. A group has at most `size` deliveries, unless one key has more."""
    group: list[Delivery] = []
    for deliveries in by_key:
        if group and len(group) + len(deliveries) > size:
            yield group
            group = []
        group.extend(deliveries)
    if group:
        yield group
