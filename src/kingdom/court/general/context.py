"""What the Generals of one process share, and the ids of their runs."""

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
from kingdom.court.package import GeneralPolicy, Package
from kingdom.court.petitions.granting import ApprovalTerms
from kingdom.court.records import ASSIGNMENTS
from kingdom.ids import first_id
from kingdom.workflow.model.run.workflow import RUN_PREFIX

# The requester of all runs of Generals. The workflow engine sends the events of these runs to its stream.
COURT_REQUESTER = "court"
# The shortest and longest wait before an assignment that cannot start is tried again.
_SOON, _LATER = timedelta(seconds=0.5), timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralContext:
    """The current packages, channel, time zone and clock. `directory` is where side files are written.

    `unused_systems` are the outside systems that the realm does not use.
    """

    packages: Callable[[], Mapping[str, Package]]
    channel: str
    zone: ZoneInfo
    clock: Callable[[], datetime]
    directory: Path | None = None
    unused_systems: Collection[str] = ()

    @property
    def today(self) -> date:
        """Return the date in the court's time zone."""
        return self.clock().astimezone(self.zone).date()

    def channel_of(self, general: str) -> str:
        """Return the channel for messages about a General."""
        package = self.packages().get(general)
        return (package.general.channel if package else "") or self.channel

    def policy_of(self, general: str) -> GeneralPolicy:
        """Return the current policy of a General, or the default policy if it has no package."""
        package = self.packages().get(general)
        return package.general.policy if package else GeneralPolicy()

    def approval_terms(self, general: str) -> ApprovalTerms:
        """Return what a question about a petition of a General needs."""
        return ApprovalTerms(policy=self.policy_of(general), channel=self.channel_of(general), today=self.today)

    def defer(self, received: Event[Any], reason: str) -> Defer:
        """Defer a notice by the time that it has waited. A new notice is tried again soon: its host may be starting."""
        waited = self.clock() - received.envelope.occurred_at
        return Defer.by(min(max(waited, _SOON), _LATER), reason)

    def defer_without_package(self, received: Event[Any], assignment: Assignment) -> Defer:
        """Defer a notice while a package is broken, so that its assignments can start after the package is fixed."""
        return self.defer(received, f"{assignment.target_general} has no package here, or a broken one")


def run_id_of(assignment: Assignment) -> str:
    """Return the id of an assignment's run. A resumed assignment continues the run of its root."""
    return run_id_of_root(assignment.root_id)


def run_id_of_root(root_id: str) -> str:
    """Return the id of the run of a root assignment."""
    return f"{RUN_PREFIX}{root_id}"


def run_ids_since(since: datetime) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return two ranges of ids that contain all runs since a moment, each as (after, before).

    The id of a General's run contains the day of its assignment in the court's time zone. The id of any other run
    contains its creation time, and sorts before the ids of Generals' runs.
    """
    court, end = run_id_of_root("task-"), run_id_of_root("task.")
    # West of UTC, the day in the court's time zone may be the day before.
    day = since - timedelta(days=1)
    return (first_id("wf", since), court), (run_id_of_root(f"task-{day:%Y%m%d}"), end)


def root_id_of(workflow_id: str) -> str:
    """Return the id of the root assignment of a run."""
    return workflow_id.removeprefix(RUN_PREFIX)


async def open_assignments(transaction: Transaction, root_id: str) -> list[tuple[Record, Assignment]]:
    """Return the unfinished assignments of a root, the current one last."""
    found = await transaction.find(RecordQuery(kind=ASSIGNMENTS.name, index="root", value=root_id))
    unfinished = [
        (record, msgspec.convert(record.doc, Assignment)) for record in found if record.state not in ASSIGNMENTS.final
    ]
    return sorted(unfinished, key=lambda each: each[1].sort_key)
