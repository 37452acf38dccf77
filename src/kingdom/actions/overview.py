"""The overview that a person sees first: what needs a person, the active runs, and the ended runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from kingdom.actions.listings import newest_runs, newest_runs_queries
from kingdom.bus.operations import StreamStats
from kingdom.bus.port import Transaction
from kingdom.bus.record import RecordQuery, read_documents
from kingdom.bus.throughput import THROUGHPUT_QUERY, read_throughput, sum_throughput
from kingdom.court.questions import HumanQuestion
from kingdom.court.status import OPEN_QUESTIONS, CourtStatus, StatusSources, build_status, status_queries
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus

_LISTED = 12
ACTIVE = (
    WorkflowStatus.PREPARING,
    WorkflowStatus.READY,
    WorkflowStatus.RUNNING,
    WorkflowStatus.RESUMING,
    WorkflowStatus.AWAITING,
    WorkflowStatus.PAUSED,
)
ENDED = (WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The status, the oldest open questions, the newest active runs, and the newest ended runs.

    `minutes` is how many events all streams have handled in each minute of the last hour.
    """

    status: CourtStatus
    questions: list[HumanQuestion]
    active: list[Workflow]
    ended: list[Workflow]
    minutes: list[int]


async def read_overview(
    transaction: Transaction, streams: Sequence[StreamStats], sources: StatusSources, now: datetime
) -> Overview:
    """Read the overview. The transaction may already have run the `overview_queries` of the same moment."""
    questions = read_documents(await transaction.find(OPEN_QUESTIONS), HumanQuestion)
    active = await newest_runs(transaction, ACTIVE, after=None, limit=_LISTED)
    ended = await newest_runs(transaction, ENDED, after=None, limit=_LISTED)
    return Overview(
        status=await build_status(transaction, streams, sources, now),
        questions=list(islice(sorted(questions, key=lambda ask: ask.asked_at), _LISTED)),
        active=active.read(Workflow),
        ended=ended.read(Workflow),
        minutes=sum_throughput(await read_throughput(transaction, now)),
    )


def overview_queries(now: datetime) -> list[RecordQuery]:
    """Return the queries whose results an overview needs."""
    runs = [newest_runs_queries(states, after=None, limit=_LISTED).values() for states in (ACTIVE, ENDED)]
    return [THROUGHPUT_QUERY, *status_queries(now), *(query for queries in runs for query in queries)]
