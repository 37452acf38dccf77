"""What a checker can find."""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What can be wrong; a trial is passed when there is nothing of any kind."""

    LOST = "events lost"
    TORN = "transactions torn apart"
    ROLLED_BACK = "rolled-back events delivered"
    TWICE = "reactions applied twice"
    REPEATED = "effects repeated"
    ORDER = "order violations"
    OVERLAP = "handlers of one key overlapped"
    STALE = "stale writes accepted"
    TAKEN = "live leases lost"
    SLOW = "recoveries too slow"
    STUCK = "events stuck"
    QUARANTINED = "healthy events quarantined"
    POISON = "poison not dead"
    INVARIANT = "invariants broken"
    PROCESS = "processes failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that must not happen, with the event, key or process it happened to."""

    kind: Kind
    subject: str
    detail: str
