"""What a process knows of its own leases: when each of them is settled whole, and by what that can be proven. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kingdom.bus.delivery import Delivery
from kingdom.bus.port import Settlement


@dataclass(slots=True)
class OpenLease:
    """What is not settled yet, and one event of each transaction that settled some."""

    unsettled: set[int]
    witnesses: list[int] = field(default_factory=list)


class OpenLeases(dict[int, OpenLease]):
    """The open leases of a process by token, and those that can be closed with the next claim."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: dict[int, OpenLease] = {}

    def hold(self, token: int, positions: Collection[int]) -> None:
        """Note a new lease."""
        self[token] = OpenLease(set(positions))

    def settle(self, items: Iterable[Delivery | Settlement]) -> None:
        """Note what one transaction settled; a lease of which nothing is left can be closed.

        An event may be ours again under a newer lease, which a late settlement under the old one must not close.
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
        """Forget leases that ended without us: nobody settles what is left of them."""
        for ended in [each for each in self if each < token]:
            del self[ended]

    def take_closed(self) -> dict[int, OpenLease]:
        """Return what can be closed, for who closes it now."""
        closed, self.closed = self.closed, {}
        return closed


def closing(leases: Mapping[int, OpenLease]) -> dict[str, list[int]]:
    """Return leases as the parameters of a statement that closes them."""
    witnesses = [position for lease in leases.values() for position in lease.witnesses]
    return {"closed": list(leases), "witnesses": witnesses}
