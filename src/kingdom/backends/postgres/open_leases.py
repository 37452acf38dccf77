"""The open leases of a process: which events are unsettled, and which events prove the settlements. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kingdom.bus.delivery import Delivery
from kingdom.bus.port import Settlement


@dataclass(slots=True)
class OpenLease:
    """The unsettled events of a lease, and one event of each transaction that settled some."""

    unsettled: set[int]
    witnesses: list[int] = field(default_factory=list)


class OpenLeases(dict[int, OpenLease]):
    """The open leases of a process by token, and those that the next claim can close."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: dict[int, OpenLease] = {}

    def hold(self, token: int, positions: Collection[int]) -> None:
        """Add a new lease."""
        self[token] = OpenLease(set(positions))

    def settle(self, items: Iterable[Delivery | Settlement]) -> None:
        """Record the settlements of one transaction. A lease without unsettled events can be closed.

        Settlements count by token: an event may be leased again under a newer token, which stays open.
        """
        positions: dict[int, list[int]] = defaultdict(list)
        for item in items:
            positions[item.token].append(item.position)
        for token, decided in positions.items():
            if lease := self.get(token):
                lease.unsettled.difference_update(decided)
                lease.witnesses.append(decided[0])
                if not lease.unsettled:
                    self.closed[token] = self.pop(token)

    def forget_below(self, token: int) -> None:
        """Forget leases below a token, which the reaper has ended."""
        for ended in [each for each in self if each < token]:
            del self[ended]

    def take_closed(self) -> dict[int, OpenLease]:
        """Remove and return the leases that can be closed. The caller closes them."""
        closed, self.closed = self.closed, {}
        return closed


def closing_parameters(leases: Mapping[int, OpenLease]) -> dict[str, list[int]]:
    """Return the parameters of a statement that closes these leases."""
    witnesses = [position for lease in leases.values() for position in lease.witnesses]
    return {"closed": list(leases), "witnesses": witnesses}
