"""What the Generals of one process work with."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from kingdom.bus.event import Event
from kingdom.bus.outcome import Defer
from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordQuery
from kingdom.court.documents import Assignment
from kingdom.court.package import Package
from kingdom.court.records import ASSIGNMENTS
from kingdom.ids import first_id

# Runs that a General asks for are told of by this name.
ASKER = "court"
_RUN = "wf-"
# What cannot begin is looked at again after a while between these.
_SOON, _LATER = timedelta(seconds=0.5), timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staff:
    """The packages as they are now, where people are told, and the clock; `directory` is where side files go.

    `absent` are the systems outside that the realm does not have.
    """

    packages: Callable[[], Mapping[str, Package]]
    channel: str
    zone: ZoneInfo
    clock: Callable[[], datetime]
    directory: Path | None = None
    absent: Collection[str] = ()

    @property
    def today(self) -> date:
        """Return the date where the court is."""
        return self.clock().astimezone(self.zone).date()

    def channel_of(self, general: str) -> str:
        """Return where people are told of what a General does."""
        package = self.packages().get(general)
        return (package.general.channel if package else "") or self.channel

    def look_again(self, received: Event[Any], reason: str) -> Defer:
        """Let it wait as long again as it has waited: what has just come may only be ahead of its host."""
        waited = self.clock() - received.envelope.occurred_at
        return Defer.by(min(max(waited, _SOON), _LATER), reason)

    def without_package(self, received: Event[Any], assignment: Assignment) -> Defer:
        """Let it wait: a package that is being mended must not cost its assignments anything."""
        return self.look_again(received, f"{assignment.target_general} has no package here, or a broken one")


def run_of(assignment: Assignment) -> str:
    """Return the id of the run that does an assignment; a resumed one goes on with that of its root."""
    return run_of_root(assignment.root_id)


def run_of_root(root_id: str) -> str:
    """Return the id of the run that does a root assignment and all its resumptions."""
    return f"{_RUN}{root_id}"


def run_ids_since(since: datetime) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return behind and before which ids the runs stand that are not older.

    A run is named by the moment of its making, or by the day of its assignment, which sorts behind.
    """
    court, end = run_of_root("task-"), run_of_root("task.")
    return (first_id("wf", since), court), (run_of_root(f"task-{since:%Y%m%d}"), end)


def root_of(workflow_id: str) -> str:
    """Return the assignment that a run was made for."""
    return workflow_id.removeprefix(_RUN)


async def open_assignments(transaction: Transaction, root_id: str) -> list[tuple[Record, Assignment]]:
    """Return what is not finished of a root and its resumptions, the current one last."""
    found = await transaction.find(RecordQuery(kind=ASSIGNMENTS.name, owner=root_id))
    unfinished = [
        (record, msgspec.convert(record.doc, Assignment)) for record in found if record.state not in ASSIGNMENTS.final
    ]
    return sorted(unfinished, key=lambda each: each[1].turn)
