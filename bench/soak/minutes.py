"""The figures of each minute, and whether they stay constant. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

# The minutes before this one warm up and are not compared.
FIRST_FLAT_MINUTE = 3
# The bounds: how much a size, the cost of an event, and the rate may vary.
SIZE_RATIO = 1.5
COST_RATIO = 1.5
RATE_RATIO = 2.0
# How many minutes vacuum needs to clean up after the pinned minute.
RECOVERY_MINUTES = 1
# Below this size, a few more pages do not count as growth.
SMALL_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Minute:
    """One minute: events per second, server time per event, mean sizes, and dead rows at its end."""

    number: int
    pinned: bool
    rate: float
    server_microseconds: float
    sizes: Mapping[str, int]
    dead: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the minute for the report."""
        return {**asdict(self), "rate": round(self.rate), "server_microseconds": round(self.server_microseconds, 1)}


def complaints(minutes: Sequence[Minute], *, noise: float = 1.0) -> list[str]:
    """Describe what does not stay constant from the third minute on.

    The rate is compared over all these minutes. Sizes and the cost of an event may grow only by a ratio from one minute
    to a later one, separately before and after the pin. The pinned minute and the next one are exempt, because dead
    rows accumulate in them. After that, a file may stay large but may not grow further. `noise` widens the bounds.
    """
    flat = [minute for minute in minutes if minute.number >= FIRST_FLAT_MINUTE]
    pin = max((minute.number for minute in minutes if minute.pinned), default=0)
    before = [minute for minute in flat if minute.number < pin]
    after = [minute for minute in flat if minute.number > pin + RECOVERY_MINUTES]
    if len(after) < 2:
        return [f"{len(after)} minutes after the pin and its recovery: too few to be called flat"]
    words = []
    rates = [minute.rate for minute in flat]
    if max(rates) > noise * RATE_RATIO * min(rates):
        words.append(f"rate: between {min(rates):,.0f} and {max(rates):,.0f} a second, {RATE_RATIO} times is allowed")
    cost = max(_growth(minute.server_microseconds for minute in part) for part in (before, after))
    if cost > noise * COST_RATIO:
        words.append(f"cost: an event costs the server {cost:.2f} times what it did, {COST_RATIO} is allowed")
    for relation in flat[0].sizes:
        growth = max(_growth(max(minute.sizes[relation], SMALL_BYTES) for minute in part) for part in (before, after))
        if growth > noise * SIZE_RATIO:
            words.append(f"{relation}: grew {growth:.2f} times, {SIZE_RATIO} is allowed")
    return words


def _growth(figures: Iterable[float]) -> float:
    """Return the largest ratio of a figure to an earlier one."""
    return max((later / earlier for earlier, later in combinations(figures, 2) if earlier), default=1.0)
