"""Read the store for the screen, and write the user's actions to it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kingdom.bootstrap import operations_of
from kingdom.bus.operations import DeadFilter, DeadLetter, StreamStats
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordQuery
from kingdom.clock import utc_now
from kingdom.court.envoy.answers import PersonAnswer, SubmissionResult, open_questions, submit_answer
from kingdom.court.general.context import run_ids_since
from kingdom.court.questions import HumanQuestion
from kingdom.court.status import COUNT_MAX, CourtStatus, StatusSources, read_status
from kingdom.errors import Permanent, Unreadable
from kingdom.workflow import lifecycle
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WORKFLOW, WorkflowStatus
from kingdom.workflow.model.steps.operations import Continue, ResumeFrom
from kingdom.workflow.records import DELETED, WORKFLOWS, run_transaction

# Failed runs stay until a person acts, so only those created within this time are shown: at most _FAILED_MAX runs of
# Generals, and as many others.
_FAILED_SHOWN = timedelta(days=3)
_FAILED_MAX = 200
# At most this many runs that ended while the screen was open are still shown.
_ENDED_MAX = 50
_LETTERS_MAX = 20
_LIVE = tuple(status for status in WorkflowStatus if status not in {*WORKFLOW.final, WorkflowStatus.FAILED})
_SOURCE = "cli"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopSnapshot:
    """Everything that the screen shows, at one moment."""

    status: CourtStatus
    streams: Sequence[StreamStats] = ()
    # The newest run comes first.
    runs: Sequence[Workflow] = ()
    asks: Sequence[HumanQuestion] = ()
    # Runs and questions that cannot be read, such as those of a newer version, with the error.
    unreadable: Mapping[str, Unreadable] = field(default_factory=dict)
    # Whether there are more failed runs than are shown.
    is_truncated: bool = False

    @property
    def asking_runs(self) -> list[Workflow]:
        """Return the runs outside the court that wait for a reply. Questions of the court are in `asks`."""
        asked = {ask.workflow_id for ask in self.asks}
        return [
            run
            for run in self.runs
            if run.question and not run.stop_request and not run.requester and run.id not in asked
        ]


@dataclass(slots=True)
class StoreClient:
    """Reads a store and acts on it for one user. `read_sources` returns the other sources of the court's status."""

    bus: Bus
    actor: str
    read_sources: Callable[[], Awaitable[StatusSources]]
    clock: Callable[[], datetime] = utc_now
    # A cache of runs by id, with their versions, because decoding a thousand runs every second is slow.
    _cache: dict[str, tuple[int, Workflow]] = field(default_factory=dict)
    _ended: dict[str, None] = field(default_factory=dict)
    _is_truncated: bool = False

    async def read_snapshot(self) -> TopSnapshot:
        """Read the current state. Runs that ended before the screen was opened are not read."""
        operations = operations_of(self.bus)
        status = await read_status(self.bus, operations, await self.read_sources())
        streams = await operations.stats()
        unreadable: dict[str, Unreadable] = {}
        async with self.bus.transaction() as transaction:
            asks = await open_questions(transaction, unreadable.__setitem__)
            records = await self._find_records(transaction)
        known, self._cache = self._cache, {}
        for record in records:
            before = known.get(record.id)
            if before and before[0] == record.version:
                self._cache[record.id] = before
                continue
            try:
                self._cache[record.id] = record.version, Workflow.read(record.doc)
            except Unreadable as error:
                unreadable[record.id] = error
        runs = sorted((run for _, run in self._cache.values()), key=lambda run: (run.created_at, run.id), reverse=True)
        return TopSnapshot(
            status=status, streams=streams, runs=runs, asks=asks, unreadable=unreadable, is_truncated=self._is_truncated
        )

    async def run(self, run_id: str) -> Workflow:
        """Return the current state of a run."""
        return await lifecycle.show(self.bus, run_id)

    async def dead_letters(self, stream: str) -> list[DeadLetter]:
        """Return the first dead letters of a stream."""
        return await operations_of(self.bus).dead_letters(DeadFilter(stream=stream), _LETTERS_MAX)

    async def answer(self, ask: HumanQuestion, text: str) -> None:
        """Answer a question of the court. If a newer question has the same id, this answer is rejected."""
        now, asked_at = self.clock(), ask.asked_at.isoformat()
        person, at = self.actor.partition("@")[0], f"{now.timestamp():.6f}"
        given = PersonAnswer(source=_SOURCE, question_id=ask.id, text=text, person=person, at=at, asked_at=asked_at)

        async def act(transaction: Transaction) -> SubmissionResult:
            return await submit_answer(transaction, given, now)

        if refusal := (await run_transaction(self.bus, act)).refusal:
            raise Permanent(f"{ask.id} does not accept this answer: {refusal}")

    async def reply(self, run_id: str, text: str) -> Workflow:
        """Answer the question of a run outside the court. The run continues its session."""
        return await self.resume(run_id, Continue(text))

    async def resume(self, run_id: str, how: ResumeFrom) -> Workflow:
        """Resume a run."""
        return await lifecycle.resume(self.bus, run_id, how, actor=self.actor)

    async def cancel(self, run_id: str) -> Workflow:
        """Cancel a run."""
        return await lifecycle.cancel(self.bus, run_id, actor=self.actor)

    async def _find_records(self, transaction: Transaction) -> list[Record]:
        """Return active runs, recently failed runs, and runs that ended while the screen was open."""
        found: dict[str, Record] = {}
        for status in _LIVE:
            query = RecordQuery(kind=WORKFLOWS.name, state=status, limit=COUNT_MAX)
            found |= {record.id: record for record in await transaction.find(query)}
        since = self.clock() - _FAILED_SHOWN
        self._is_truncated = False
        for after, before in run_ids_since(since):
            failed = await _find_newest_failed(transaction, after, before)
            self._is_truncated |= len(failed) > _FAILED_MAX
            found |= {record.id: record for record in failed[:_FAILED_MAX]}
        self._ended |= dict.fromkeys(run_id for run_id in self._cache if run_id not in found)
        self._ended = dict.fromkeys([run_id for run_id in self._ended if run_id not in found][-_ENDED_MAX:])
        keys = [(WORKFLOWS.name, run_id) for run_id in self._ended]
        await transaction.read_ahead(keys)
        ended = [await transaction.get(*key) for key in keys]
        return [*found.values(), *(record for record in ended if record and record.state != DELETED)]


async def _find_newest_failed(transaction: Transaction, after: str, before: str) -> list[Record]:
    """Return the newest failed runs between two ids, one more than the maximum if there are more."""
    query = RecordQuery(
        kind=WORKFLOWS.name, state=WorkflowStatus.FAILED, after=before, limit=_FAILED_MAX + 1, descending=True
    )
    return [record for record in await transaction.find(query) if record.id > after]
