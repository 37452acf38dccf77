"""The costs and results of the court: sums by day, which are updated when an assignment is released."""

from collections.abc import Mapping
from datetime import date, timedelta
from decimal import Decimal

import msgspec

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordKind, RecordQuery, read_document, read_documents
from kingdom.court.documents import Assignment, AssignmentStatus
from kingdom.court.records import ENDED
from kingdom.workflow.model.run.workflow import Workflow

DAYS_KEPT = 400
DAILY_COSTS = RecordKind(
    name="daily-costs",
    directories={ENDED: "state/king/costs"},
    final=frozenset({ENDED}),
    retention=timedelta(days=DAYS_KEPT),
)
# The name of costs without a repository, of a model that only the agent knows, and of names beyond the limit.
NO_REPOSITORY, DEFAULT_MODEL, OTHERS = "none", "default", "others"
# A day has at most this many names of a kind, so that the size of its record is bounded.
_NAMES_MAX = 500
_USD_DIGITS = 6
Sums = dict[str, Decimal]


class DayCosts(msgspec.Struct, kw_only=True):
    """The costs of one day in the court's time zone, in dollars.

    `generals`, `repositories` and `models` each add up to `usd`. `completed` and `failed` count the assignments
    of each General that ended on this day.
    """

    day: date
    usd: Decimal = Decimal(0)
    generals: Sums = {}
    repositories: Sums = {}
    models: Sums = {}
    completed: dict[str, int] = {}
    failed: dict[str, int] = {}

    def add(self, general: str, repository: str, models: Mapping[str, Decimal]) -> None:
        """Add the costs of one assignment by model."""
        usd = sum(models.values(), Decimal(0))
        self.usd += usd
        _add(self.generals, general, usd)
        _add(self.repositories, repository, usd)
        for name, amount in models.items():
            _add(self.models, name, amount)

    def count_end(self, general: str, status: AssignmentStatus) -> None:
        """Count an assignment that has ended. One that was skipped is neither a success nor a failure."""
        counts = {AssignmentStatus.COMPLETED: self.completed, AssignmentStatus.FAILED: self.failed}.get(status)
        if counts is not None:
            counts[general] = counts.get(general, 0) + 1


async def book_release(
    transaction: Transaction, day: date, assignment: Assignment, models: Mapping[str, Decimal], *, has_just_ended: bool
) -> None:
    """Add costs of an assignment, and its end, to the sums of a day. The caller adds each cost only once."""
    record = await transaction.get(DAILY_COSTS.name, str(day))
    costs = read_document(record.doc, DayCosts) if record else DayCosts(day=day)
    costs.add(assignment.target_general, (assignment.repo or NO_REPOSITORY).lower(), models)
    if has_just_ended:
        costs.count_end(assignment.target_general, assignment.status)
    version = record.version if record else 0
    doc = msgspec.to_builtins(costs)
    await transaction.put(Record(kind=DAILY_COSTS.name, id=str(day), version=version, state=ENDED, doc=doc))


async def read_days(transaction: Transaction, since: date) -> list[DayCosts]:
    """Return the costs of each day since a day, the oldest first. A day without costs is missing."""
    return list(read_documents(await transaction.find(days_query(since)), DayCosts))


def days_query(since: date) -> RecordQuery:
    """Return the query of `read_days`."""
    after = str(since - timedelta(days=1))
    return RecordQuery(kind=DAILY_COSTS.name, after=after, limit=DAYS_KEPT + 1)


def split_by_model(workflow: Workflow | None, booked: Mapping[str, Decimal], usd: Decimal) -> Sums:
    """Divide `usd` by model: the unbooked cost of each Work under its model, and the rest under `OTHERS`."""
    costs: Sums = {}
    for work in workflow.works if workflow else ():
        _add(costs, work.definition.model or DEFAULT_MODEL, Decimal(str(round(work.cost_usd, _USD_DIGITS))))
    split, left = Sums(), usd
    for name, cost in costs.items():
        amount = min(cost - booked.get(name, Decimal(0)), left)
        if amount > 0:
            split[name] = amount
            left -= amount
    if left > 0:
        _add(split, OTHERS, left)
    return split


def _add(sums: Sums, name: str, usd: Decimal) -> None:
    if not usd:
        return
    key = name if name in sums or len(sums) < _NAMES_MAX else OTHERS
    sums[key] = sums.get(key, Decimal(0)) + usd
