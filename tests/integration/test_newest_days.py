"""The newest records are found by their ids, although the ids of one day do not sort by time."""

from datetime import UTC, datetime, timedelta

import pytest

from kingdom.actions.listings import newest_days, newest_runs_of_days
from kingdom.bus import Record, RecordQuery, Transaction
from kingdom.court.documents import AssignmentStatus
from kingdom.court.records import ASSIGNMENTS
from kingdom.realm import Realm
from kingdom.roles import declare_application
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import WORKFLOWS
from tests.contract.backends import BackendUnderTest

FIRST = datetime(2026, 11, 1, tzinfo=UTC)
DAYS, NUMBERS = 20, range(990, 1010)


def made() -> list[tuple[str, datetime]]:
    """Return the ids of assignments, and when each was created."""
    days = [FIRST + timedelta(days=day) for day in range(DAYS)]
    return [(f"task-{day:%Y%m%d}-{number:03d}", day + timedelta(seconds=number)) for day in days for number in NUMBERS]


class Counted:
    """A transaction that counts how many records were read."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.read = 0

    async def find(self, query: RecordQuery) -> list[Record]:
        found = await self._transaction.find(query)
        self.read += len(found)
        return found


@pytest.mark.parametrize("kind", [ASSIGNMENTS, WORKFLOWS], ids=lambda kind: kind.name)
async def test_the_newest_records_are_complete_and_older_days_are_not_read(
    backend: BackendUnderTest, kind: object
) -> None:
    app = declare_application(Realm())
    is_run = kind is WORKFLOWS
    state = WorkflowStatus.COMPLETED if is_run else AssignmentStatus.COMPLETED
    async with backend.open(app.topology, app.kinds) as bus:
        numbered = made()
        async with bus.transaction() as transaction:
            for name, at in numbered:
                record_id = f"wf-{name}" if is_run else name
                doc = {"id": record_id, "createdAt" if is_run else "created_at": at.isoformat()}
                where = WORKFLOWS.name if is_run else ASSIGNMENTS.name
                await transaction.put(Record(kind=where, id=record_id, state=state, doc=doc))
        async with bus.transaction() as transaction:
            counted: Transaction = Counted(transaction)  # type: ignore[assignment] # it has the methods that are called
            if is_run:
                found = await newest_runs_of_days(counted, state, 50)
            else:
                found = await newest_days(counted, ASSIGNMENTS, 50, state=state)
    ids = {record.id.removeprefix("wf-") for record in found}
    # The result has three whole days, because number 1009 of a day sorts before number 990.
    assert ids == {name for name, _ in numbered[-60:]}
    assert counted.read <= 200  # type: ignore[attr-defined] # it counts
