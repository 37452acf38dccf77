"""Run a trial: create a store, start processes, inject faults, let the workers finish, and check what happened."""

import asyncio
import contextlib
import math
import random
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from kingdom.bootstrap import open_bus, operations_of, server_url, trial_store
from kingdom.bus import Bus, Envelope, Record, RecordKind, RecordQuery
from kingdom.errors import KingdomError, Misconfigured, Unavailable
from kingdom.settings import Settings
from kingdom.trial_store import TrialStore
from kingdom.verify.evidence import Evidence
from kingdom.verify.fleet import COMMAND, Fleet
from kingdom.verify.history import History, HistoryEntry, read_history, with_stored_positions
from kingdom.verify.nemesis import ExtraFault, Nemesis
from kingdom.verify.operator import LogReader, Operator
from kingdom.verify.process_config import ProcessConfig
from kingdom.verify.publisher import draw_reaction
from kingdom.verify.report import TrialReport, build_report
from kingdom.verify.script import ScriptRunner
from kingdom.verify.target import CallTarget
from kingdom.verify.workload import (
    ANY,
    APPLIED,
    CALL_WITH_IDENTIFIER,
    CLOSED,
    EXPIRING,
    KINDS,
    LINE,
    REACTED,
    STEADY,
    TALLY,
    Job,
    describe,
    topology,
)

_LOOK_EVERY_SECONDS = 0.05
_CHECK_PAUSE_SECONDS_MIN = 0.3
# The pause after a check of the invariants is at least this many times as long as the check.
_CHECK_PAUSE_RATIO = 4
_RECORDS_MAX = 100_000
_POISON_NEIGHBORS = 6
# The duration of a long job, in leases. The worker keeps such a job only if it renews its lease.
_LONG_JOB_LEASES = 1.75
_LONG_JOBS = 2
# Delays of the machine are measured with sleeps of the first length. A delay above the second value is recorded.
_SLEEP_SECONDS = 0.02
_LATE_SECONDS = 0.02

_Answer = TypeVar("_Answer")


def _has_faults(faults: Mapping[str, int]) -> bool:
    return bool(faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlan:
    """The duration, the load and the faults of a trial.

    A trial lasts at least `seconds`, and until `enough` returns true for the number of faults of each kind. A slow
    machine has fewer faults per second. The default `lease` is the shortest that the store supports. `pause` is
    the average pause of a publisher between two transactions. `poisons` is the number of events per stream that kill
    their worker. Kafka at `kafka_servers` carries the streams `carried`, and `couriers` is the number of processes that
    send their events there. `flood` is the number of events in one large transaction at the start. `failure_rate` is
    the probability that a reaction fails by chance. `patience` limits each wait. The workers finish all events after
    the trial; if the number of open events reaches no new minimum for the time `drain`, the trial ends with open
    events. `command` starts a process under test.
    """

    seconds: float
    seed: int
    workers: int = 2
    publishers: int = 1
    lease: timedelta | None = None
    fault_every: timedelta = timedelta(seconds=1)
    enough: Callable[[Mapping[str, int]], bool] = _has_faults
    extra_faults: Sequence[ExtraFault] = ()
    kafka_servers: str = ""
    carried: tuple[str, ...] = ()
    couriers: int = 0
    pause: timedelta = timedelta(milliseconds=50)
    poisons: int = 2
    flood: int = 0
    failure_rate: float = 0.05
    patience: timedelta = timedelta(minutes=5)
    drain: timedelta = timedelta(minutes=5)
    command: Sequence[str] = COMMAND


class Trial:
    """A store, a target and a fleet of processes, for random and for scripted trials."""

    def __init__(
        self, plan: TrialPlan, store: TrialStore, bus: Bus, target: CallTarget, directory: Path, history: History
    ) -> None:
        self.plan = plan
        self.store = store
        self.bus = bus
        self.target = target
        self.directory = directory
        self.scripts = ScriptRunner(directory)
        self.history = history
        self.lease = plan.lease or store.shortest_lease
        self.rng = random.Random(plan.seed)  # noqa: S311 - a seeded trial, no secret
        config = ProcessConfig(
            role="worker",
            name="",
            url=store.url,
            schema=store.schema,
            directory=str(directory),
            target_port=target.port,
            seed=0,
            lease_seconds=self.lease.total_seconds(),
            failure_rate=plan.failure_rate,
            pause_seconds=plan.pause.total_seconds(),
            steady_lease_seconds=store.shortest_lease.total_seconds(),
            kafka_servers=plan.kafka_servers,
            carried=plan.carried,
        )
        self.fleet = Fleet(config, history, random.Random(plan.seed + 1), command=plan.command)  # noqa: S311 - as above
        self._operations = operations_of(bus)
        self.operator = Operator(self._operations, self.publish, history, random.Random(plan.seed + 2))  # noqa: S311 - as above
        self.log_reader = LogReader(self._operations)
        self._closings: set[asyncio.Task[None]] = set()
        target.on_accepted = self._close_later
        self._began = time.monotonic()
        self._drain_began = 0.0
        self._drained_seconds = 0.0

    async def wait_until_ready(self) -> None:
        """Wait until every process has opened its bus. The time until then is not part of the trial."""

        def are_ready(entries: list[HistoryEntry]) -> bool:
            return sum(entry.what == "ready" for entry in entries) >= len(self.fleet.all_members)

        def has_failed(entries: list[HistoryEntry]) -> bool:
            return any(entry.what == "exited" and entry.facts["code"] > 0 for entry in entries)

        with contextlib.suppress(TimeoutError):
            await self.wait_until(lambda entries: are_ready(entries) or has_failed(entries))
        if not are_ready(read_history(self.directory)):
            printed = "".join(path.read_text() for path in self.directory.glob("*.stderr")).strip()
            raise Unavailable(f"the processes under test do not start: {printed[-500:] or 'they printed no error'}")
        self._began = time.monotonic()

    async def publish(self, *envelopes: Envelope, at: datetime | None = None) -> None:
        """Publish events in one transaction, and record this in the history."""
        self.history.write("publishing", events=[describe(envelope, due=at) for envelope in envelopes])
        async with self.bus.transaction() as transaction:
            await transaction.publish(*envelopes, at=at)
        self.history.write("published", events=[str(envelope.event_id) for envelope in envelopes])

    def _close_later(self, call: str) -> None:
        """Publish the event that closes an accepted call. Repeat this until it succeeds."""

        async def close() -> None:
            closing = CLOSED.envelope(Job(call=call), stream=ANY)
            while True:
                try:
                    return await self.publish(closing)
                except KingdomError:
                    await asyncio.sleep(_LOOK_EVERY_SECONDS)

        task = asyncio.create_task(close(), name=f"verify-close-{call}")
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    async def record_clock(self, known: Envelope) -> None:
        """Record the time of the store, which decides when a delayed event is due. `known` is any stored event."""
        asked = time.monotonic_ns()
        situation = (await self._operations.situations(known.event_id))[0]
        self.history.write("clock", asked=asked, store=situation.now.timestamp())

    async def wait_until(self, seen: Callable[[list[HistoryEntry]], object], *, seconds: float | None = None) -> None:
        """Wait until the history fulfills a condition."""
        async with asyncio.timeout(seconds or self.plan.patience.total_seconds()):
            while not seen(read_history(self.directory)):  # noqa: ASYNC110 - other processes write it
                await asyncio.sleep(_LOOK_EVERY_SECONDS)

    async def watch(self) -> None:
        """Check the invariants of the store repeatedly, with pauses that keep the load low."""
        while True:
            began = time.monotonic()
            with contextlib.suppress(KingdomError):
                for broken in await self.store.broken_invariants():
                    self.history.write("broken", invariant=broken)
            await asyncio.sleep(max(_CHECK_PAUSE_SECONDS_MIN, _CHECK_PAUSE_RATIO * (time.monotonic() - began)))

    async def record_delays(self) -> None:
        """Record how late the machine wakes this process. The time limits of the checks allow for these delays."""
        while True:
            due = time.monotonic() + _SLEEP_SECONDS
            await asyncio.sleep(_SLEEP_SECONDS)
            if (late := time.monotonic() - due) > _LATE_SECONDS:
                self.history.write("late", seconds=round(late, 3))

    async def publish_long_jobs(self) -> None:
        """Publish jobs that last longer than their lease, for the steady worker, which gets no faults."""
        work_ms = int(self.store.shortest_lease.total_seconds() * _LONG_JOB_LEASES * 1000)
        jobs = [Job(work_ms=work_ms, call=f"long-{number}") for number in range(_LONG_JOBS)]
        await self.publish(*(CALL_WITH_IDENTIFIER.envelope(job, stream=STEADY) for job in jobs))

    async def publish_poison(self) -> None:
        """In the first half of the trial, publish events that kill their worker, together with healthy events."""
        for _ in range(self.plan.poisons):
            for stream, key in ((ANY, None), (LINE, "poisoned")):
                neighbors = [draw_reaction(self.rng, stream) for _ in range(_POISON_NEIGHBORS)]
                poison = REACTED.envelope(Job(fate="poison"), stream=stream, partition_key=key)
                neighbors.insert(self.rng.randrange(_POISON_NEIGHBORS), poison)
                # A fault may have made the store unavailable.
                with contextlib.suppress(Unavailable):
                    await self.publish(*neighbors)
            await asyncio.sleep(self.plan.seconds / 2 / self.plan.poisons)

    async def drain(self) -> None:
        """Wait until the workers have finished all events, or make no progress any more. Then stop the workers."""
        self._drain_began = moved_at = time.monotonic()
        await self.fleet.retire("publisher")
        least: float = math.inf
        while (
            open_events := await self._count_open()
        ) and time.monotonic() < moved_at + self.plan.drain.total_seconds():
            if open_events < least:
                least, moved_at = open_events, time.monotonic()
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
        self._drained_seconds = time.monotonic() - self._drain_began
        await self.fleet.retire()
        await self.target.wait_for_requests()
        for broken in await self.store.broken_invariants():
            self.history.write("broken", invariant=broken)

    async def _count_open(self) -> float:
        """Do the work that only an operator can do, and return how many events are open, or infinity if unknown."""
        with contextlib.suppress(KingdomError):
            # Ask the store first, because it waits until a process under test has killed a stopped holder of the lock.
            # If the operator came first, it would kill that holder itself.
            unfinished = await self.store.unfinished()
            await self.operator.resume()
            return await self.operator.resolve_dead_letters() + len(self._closings) + unfinished
        return math.inf

    async def evidence(self) -> Evidence:
        """Collect the evidence of the trial."""
        await self._read_with_retries(self.log_reader.finish)
        events = await self._read_with_retries(self.store.events)
        positions = {(event.stream, event.event_id): event.position for event in reversed(events)}
        return Evidence(
            streams={name: self.bus.topology.stream(name) for name in self.bus.topology.names()},
            history=with_stored_positions(read_history(self.directory), self.plan.carried, positions),
            events=events,
            applied=await self.store.log_data(APPLIED),
            read=self.log_reader.read,
            counts_by_record={record.id: record.doc["count"] for record in await self._records(TALLY)},
            records={record.id: record.state for record in await self._records(EXPIRING)},
        )

    def report(self, evidence: Evidence) -> TrialReport:
        """Check the evidence and return the report."""
        seconds = self._drain_began - self._began
        return build_report(evidence, seed=self.plan.seed, seconds=seconds, drained_seconds=self._drained_seconds)

    async def _records(self, kind: RecordKind) -> list[Record]:
        async def find() -> list[Record]:
            async with self.bus.transaction() as transaction:
                return await transaction.find(RecordQuery(kind=kind.name, limit=_RECORDS_MAX))

        return await self._read_with_retries(find)

    async def _read_with_retries(self, read: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Read from the store. Retry after an error, because a fault may have broken an idle connection."""
        async with asyncio.timeout(self.plan.patience.total_seconds()):
            while True:
                with contextlib.suppress(Unavailable):
                    return await read()
                await asyncio.sleep(_LOOK_EVERY_SECONDS)


@asynccontextmanager
async def open_trial(url: str, plan: TrialPlan, directory: Path | None = None) -> AsyncIterator[Trial]:
    """Set up everything that a trial needs, and always remove it afterwards. A given directory is kept."""
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(server_url(url))
        schema = f"kingdom_verify_{secrets.token_hex(4)}"
        settings = Settings(database_url=server, schema=schema, kafka_servers=plan.kafka_servers or None)
        store = trial_store(server, schema, kafka=settings, applied=APPLIED)
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kingdom-verify-")))
        elif read_history(directory):
            raise Misconfigured(f"{directory} has the history of an earlier trial: choose another directory")
        stack.push_async_callback(store.drop)
        await store.create()
        streams = topology(plan.lease or store.shortest_lease, store.shortest_lease, plan.carried)
        bus = await stack.enter_async_context(open_bus(store.safe_url, streams, KINDS, schema=store.schema))
        history, target_history = History(directory, "trial"), History(directory, "target")
        stack.callback(history.close)
        stack.callback(target_history.close)
        target = CallTarget(target_history)
        await target.start()
        stack.push_async_callback(target.stop)
        trial = Trial(plan, store, bus, target, directory, history)
        stack.push_async_callback(trial.fleet.retire)
        stack.callback(asyncio.create_task(trial.record_delays(), name="verify-delays").cancel)
        yield trial


async def run_trial(url: str, plan: TrialPlan, directory: Path | None = None) -> TrialReport:
    """Run a random trial and return its report."""
    async with open_trial(url, plan, directory) as trial:
        for _ in range(plan.workers):
            trial.fleet.add("worker")
        for _ in range(plan.publishers):
            trial.fleet.add("publisher")
        for _ in range(plan.couriers):
            trial.fleet.add("courier")
        trial.fleet.add("steady")
        lease_seconds = trial.lease.total_seconds()
        nemesis = Nemesis(
            trial.fleet,
            trial.store,
            trial.history,
            trial.rng,
            lease_seconds=lease_seconds,
            extra_faults=plan.extra_faults,
        )
        if plan.flood:
            jobs = (Job(tally=f"flood-{number}") for number in range(plan.flood))
            await trial.publish(*(REACTED.envelope(job, stream=ANY) for job in jobs))
        # At least one event must end DEAD.
        doomed = REACTED.envelope(Job(fate="doomed"), stream=LINE, partition_key="doomed")
        await trial.publish(doomed)
        await trial.record_clock(doomed)
        await trial.wait_until_ready()
        await trial.publish_long_jobs()
        steady_seconds = trial.store.shortest_lease.total_seconds()
        async with _run_alongside(trial.watch()), _run_alongside(trial.log_reader.run()):
            try:
                async with (
                    _run_alongside(trial.operator.run(cancelled_after_seconds=steady_seconds / 2)),
                    _run_alongside(nemesis.run(every_seconds=plan.fault_every.total_seconds())),
                ):
                    await asyncio.gather(trial.publish_poison(), asyncio.sleep(plan.seconds))
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(plan.patience.total_seconds()):
                            while not plan.enough(nemesis.fault_counts):  # noqa: ASYNC110 - the nemesis counts them
                                await asyncio.sleep(_LOOK_EVERY_SECONDS)
            finally:
                await nemesis.resume_all()
            await trial.drain()
        return trial.report(await trial.evidence())


async def verify(
    url: str, *, seconds: float = 10.0, seed: int | None = None, directory: Path | None = None
) -> TrialReport:
    """Run a trial in a temporary schema of the user's own database, or in a temporary directory."""
    plan = TrialPlan(
        seconds=seconds,
        seed=secrets.randbits(32) if seed is None else seed,
        poisons=1,
        fault_every=timedelta(seconds=min(1.0, seconds / 8)),
    )
    return await run_trial(url, plan, directory)


@asynccontextmanager
async def _run_alongside(endless: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine until the block ends. If the coroutine fails, the block fails too."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(endless)
        yield
        task.cancel()
