"""Compare what a store has received with what the other one has published. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """The numbers of published events that were never applied or applied again, and of keys in the wrong order."""

    applied: int
    lost: int
    twice: int
    disordered: int

    @property
    def is_good(self) -> bool:
        """Return whether each event was applied once, in the order of its key."""
        return not (self.lost or self.twice or self.disordered)


def judge(published: Mapping[str, Sequence[int]], received: Mapping[str, Sequence[int]]) -> Verdict:
    """Compare the numbers of each key."""
    lost = twice = disordered = 0
    for key in published.keys() | received.keys():
        wanted, found = Counter(published.get(key, ())), Counter(received.get(key, ()))
        lost += (wanted - found).total()
        twice += (found - wanted).total()
        first_times = list(dict.fromkeys(received.get(key, ())))
        disordered += first_times != sorted(first_times)
    return Verdict(sum(map(len, received.values())), lost, twice, disordered)
