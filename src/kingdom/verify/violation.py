"""The violations that the checker can find."""

from dataclasses import dataclass
from enum import Enum


class ViolationKind(Enum):
    """The kinds of violation. A trial passes if there is none."""

    LOST = "events lost"
    TORN = "transactions torn apart"
    ROLLED_BACK = "rolled-back events delivered"
    DOUBLED = "ids or positions given twice"
    EARLY = "delayed events too early"
    TWICE = "reactions applied twice"
    CONTEST = "dedup keys taken by two reactions or by none"
    REPEATED = "effects repeated"
    UNCLOSED = "accepted effects not closed exactly once"
    ORDER = "order violations"
    OVERTAKEN = "dead events overtaken in a blocked key"
    OVERLAP = "handlers of one key overlapped"
    STALE = "stale writes accepted"
    TAKEN = "live leases lost"
    SLOW = "recoveries too slow"
    STUCK = "events stuck"
    QUARANTINED = "healthy events quarantined"
    POISON = "events that always fail, but are not DEAD"
    DISOBEYED = "cancelled, discarded or paused, yet run"
    NOT_REDRIVEN = "redriven events not run again"
    REMOVED = "kept records removed"
    MISREAD = "log entries missed or read twice"
    INVARIANT = "invariants broken"
    PROCESS = "processes failed"


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation, with the event, key or process that it concerns."""

    kind: ViolationKind
    subject: str
    detail: str
