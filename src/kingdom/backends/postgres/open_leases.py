"""The open leases of a process, and which of their events are settled. This module does no I/O."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kingdom.bus.delivery import Delivery
from kingdom.bus.port import Settlement


@dataclass(slots=True)
class OpenLease:
    """A lease and its unsettled events. `witnesses` has one event of each transaction that settled events of the lease.

    If the server loses such a transaction in a failover, its witness is in flight again, and the lease must stay.
    """

    unsettled: set[int]
    witnesses: list[int] = field(default_factory=list)


class OpenLeases(dict[int, OpenLease]):
    """The open leases of a process by token. `closable` has the leases that the next claim can close."""

    def __init__(self) -> None:
        super().__init__()
        self.closable: dict[int, OpenLease] = {}

    def hold(self, token: int, positions: Collection[int]) -> None:
        """Add a new lease."""
        self[token] = OpenLease(set(positions))

    def settle(self, items: Iterable[Delivery | Settlement]) -> None:
        """Record the settlements of one transaction. A lease becomes closable when all its events are settled.

        A settlement changes only the lease with its own token, because the event may already be in a newer lease.
        """
        positions: dict[int, list[int]] = defaultdict(list)
        for item in items:
            positions[item.token].append(item.position)
        for token, settled in positions.items():
            if lease := self.get(token):
                lease.unsettled.difference_update(settled)
                lease.witnesses.append(settled[0])
                if not lease.unsettled:
                    self.closable[token] = self.pop(token)

    def lose(self, items: Iterable[Delivery | Settlement]) -> None:
        """Record events that a transaction could not settle. Each may still be in flight, so each is a witness."""
        for item in items:
            self.settle([item])

    def forget_below(self, token: int) -> None:
        """Remove the leases with lower tokens. The reaper has ended them."""
        for ended in [each for each in self if each < token]:
            del self[ended]

    def take_closable(self) -> dict[int, OpenLease]:
        """Remove and return the closable leases. The caller closes them."""
        closable, self.closable = self.closable, {}
        return closable


def closing_parameters(leases: Mapping[int, OpenLease]) -> dict[str, list[int]]:
    """Return the parameters of a statement that closes these leases."""
    witnesses = [position for lease in leases.values() for position in lease.witnesses]
    return {"closed": list(leases), "witnesses": witnesses}
