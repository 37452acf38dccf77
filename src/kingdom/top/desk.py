"""What the screen asks of the store and does to it; nothing is known here that the store does not say."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kingdom.bootstrap import operations_of
from kingdom.bus.operations import DeadFilter, DeadLetter, StreamStats
from kingdom.bus.port import Bus, Transaction
from kingdom.bus.record import Record, RecordQuery
from kingdom.clock import utc_now
from kingdom.court.asks import Ask
from kingdom.court.envoy.answers import Answer, Taken, open_asks, take_answer
from kingdom.court.general.staff import run_ids_since
from kingdom.court.standing import COUNT_MAX, Lookout, Standing, look
from kingdom.errors import Permanent, Unreadable
from kingdom.workflow import lifecycle
from kingdom.workflow.model.machine import WORKFLOW, WorkflowStatus
from kingdom.workflow.model.operations import Continue, ResumeFrom
from kingdom.workflow.model.workflow import Workflow
from kingdom.workflow.records import DELETED, WORKFLOWS, change

# A failed run waits for a person without an end; of those only so old ones are shown.
_FAILED_SHOWN = timedelta(days=3)
_FAILED_MAX = 200
# So many runs that ended while somebody looked stay to be looked at.
_ENDED_MAX = 50
_LETTERS_MAX = 20
_LIVE = tuple(status for status in WorkflowStatus if status not in {*WORKFLOW.final, WorkflowStatus.FAILED})
_SOURCE = "cli"


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """Everything that the screen shows, at one moment."""

    standing: Standing
    streams: Sequence[StreamStats] = ()
    # The newest first.
    runs: Sequence[Workflow] = ()
    asks: Sequence[Ask] = ()
    # Runs and questions that another version wrote or somebody broke, with what is wrong.
    unreadable: Mapping[str, Unreadable] = field(default_factory=dict)
    # Whether there are more failed runs than are shown.
    is_cut: bool = False

    @property
    def asking_runs(self) -> list[Workflow]:
        """Return runs that a person started and that wait for a reply; what the court asks is among the asks."""
        asked = {ask.workflow_id for ask in self.asks}
        return [run for run in self.runs if run.question and not run.wanted and not run.asker and run.id not in asked]


@dataclass(slots=True)
class Desk:
    """One person's view of a store; `lookout` tells what a look at the court needs, as files have it now."""

    bus: Bus
    actor: str
    lookout: Callable[[], Awaitable[Lookout]]
    clock: Callable[[], datetime] = utc_now
    # A run is converted once per version; a thousand of them would keep a slow machine busy.
    _read: dict[str, tuple[int, Workflow]] = field(default_factory=dict)
    _ended: dict[str, None] = field(default_factory=dict)
    _is_cut: bool = False
    # Behind which id the newest failed runs stand, where there are more than are shown.
    _start: dict[str, str] = field(default_factory=dict)

    async def look(self) -> Glance:
        """Return how everything stands now; what ended before this screen was opened costs nothing."""
        operations = operations_of(self.bus)
        standing = await look(self.bus, operations, await self.lookout())
        streams = await operations.stats()
        unreadable: dict[str, Unreadable] = {}
        async with self.bus.transaction() as transaction:
            asks = await open_asks(transaction, unreadable.__setitem__)
            records = await self._records(transaction)
        known, self._read = self._read, {}
        for record in records:
            before = known.get(record.id)
            if before and before[0] == record.version:
                self._read[record.id] = before
                continue
            try:
                self._read[record.id] = record.version, Workflow.read(record.doc)
            except Unreadable as error:
                unreadable[record.id] = error
        runs = sorted((run for _, run in self._read.values()), key=lambda run: (run.created_at, run.id), reverse=True)
        return Glance(
            standing=standing, streams=streams, runs=runs, asks=asks, unreadable=unreadable, is_cut=self._is_cut
        )

    async def run(self, run_id: str) -> Workflow:
        """Return a run as it stands."""
        return await lifecycle.show(self.bus, run_id)

    async def dead_letters(self, stream: str) -> list[DeadLetter]:
        """Return the first dead letters of a stream."""
        return await operations_of(self.bus).dead_letters(DeadFilter(stream=stream), _LETTERS_MAX)

    async def answer(self, ask: Ask, text: str) -> None:
        """Answer a question of the court, just that one: another that came meanwhile is not answered by it."""
        now, asked_at = self.clock(), ask.asked_at.isoformat()
        person, at = self.actor.partition("@")[0], f"{now.timestamp():.6f}"
        given = Answer(source=_SOURCE, task_id=ask.id, text=text, person=person, at=at, asked_at=asked_at)

        async def act(transaction: Transaction) -> Taken:
            return await take_answer(transaction, given, now)

        if refusal := (await change(self.bus, act)).refusal:
            raise Permanent(f"{ask.id} takes no such answer: {refusal}")

    async def reply(self, run_id: str, text: str) -> Workflow:
        """Answer the question of a run that a person started; it goes on in its session."""
        return await self.resume(run_id, Continue(text))

    async def resume(self, run_id: str, how: ResumeFrom) -> Workflow:
        """Let a run go on."""
        return await lifecycle.resume(self.bus, run_id, how, actor=self.actor)

    async def cancel(self, run_id: str) -> Workflow:
        """Give a run up."""
        return await lifecycle.cancel(self.bus, run_id, actor=self.actor)

    async def _records(self, transaction: Transaction) -> list[Record]:
        """Return the runs that are not over, those that failed lately, and those that ended while somebody looked."""
        found: dict[str, Record] = {}
        for status in _LIVE:
            query = RecordQuery(kind=WORKFLOWS.name, state=status, limit=COUNT_MAX)
            found |= {record.id: record for record in await transaction.find(query)}
        since = self.clock() - _FAILED_SHOWN
        self._is_cut = False
        for after, before in run_ids_since(since):
            failed = await self._newest_failed(transaction, after, before)
            self._is_cut |= len(failed) > _FAILED_MAX
            found |= {record.id: record for record in failed[-_FAILED_MAX:]}
        self._ended |= dict.fromkeys(run_id for run_id in self._read if run_id not in found)
        self._ended = dict.fromkeys([run_id for run_id in self._ended if run_id not in found][-_ENDED_MAX:])
        keys = [(WORKFLOWS.name, run_id) for run_id in self._ended]
        await transaction.read_ahead(keys)
        ended = [await transaction.get(*key) for key in keys]
        return [*found.values(), *(record for record in ended if record and record.state != DELETED)]

    async def _newest_failed(self, transaction: Transaction, after: str, before: str) -> list[Record]:
        """Return the newest of the failed runs between two ids; only the first look passes over all of them."""
        start = max(after, self._start.get(before, ""))
        failed = await _failed(transaction, start, before)
        if len(failed) <= _FAILED_MAX and start > after:
            failed = await _failed(transaction, after, before)
        self._start[before] = failed[0].id[:-1] if len(failed) > _FAILED_MAX else ""
        return failed


async def _failed(transaction: Transaction, after: str, before: str) -> list[Record]:
    """Return the last failed runs between two ids, and one more than are shown if there are more."""
    newest: list[Record] = []
    while True:
        query = RecordQuery(kind=WORKFLOWS.name, state=WorkflowStatus.FAILED, after=after, limit=_FAILED_MAX)
        page = await transaction.find(query)
        newest = [*newest, *(record for record in page if record.id < before)][-_FAILED_MAX - 1 :]
        if len(page) < _FAILED_MAX or page[-1].id >= before:
            return newest
        after = page[-1].id
