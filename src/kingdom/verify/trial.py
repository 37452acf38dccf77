"""A trial from beginning to end: a throwaway store, processes, a nemesis, the drain, the verdict."""

import asyncio
import contextlib
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
from kingdom.trial_store import TrialStore
from kingdom.verify.evidence import Evidence
from kingdom.verify.fleet import COMMAND, Fleet
from kingdom.verify.history import History, HistoryEntry, read_history
from kingdom.verify.nemesis import ExtraFault, Nemesis
from kingdom.verify.operator import LogReader, Operator
from kingdom.verify.process_config import ProcessConfig
from kingdom.verify.publisher import draw_reaction
from kingdom.verify.report import TrialReport, judge
from kingdom.verify.script import ScriptRunner
from kingdom.verify.target import CallTarget
from kingdom.verify.workload import (
    ANY,
    APPLIED,
    CALLED,
    CLOSED,
    FLEETING,
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
_SAMPLE_EVERY_SECONDS = 0.3
_SAMPLE_PAUSE_SHARE = 4
_RECORDS_MAX = 100_000
_POISON_NEIGHBOURS = 6
# Longer than a lease: only renewals keep such a job.
_STEADY_LEASES = 1.75
_STEADY_CALLS = 2
_BEAT_SECONDS = 0.02
_LATE_SECONDS = 0.02

_Answer = TypeVar("_Answer")


def _any(faults: Mapping[str, int]) -> bool:
    return bool(faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlan:
    """How hard a trial is; `flood` events come in one transaction first, `command` starts one process under test.

    Without a `lease`, it is as short as the store can bear. Where not `enough` faults, counted by kind, have struck
    after its seconds, the trial goes on until they have: a slow machine has fewer of them per second.
    """

    seconds: float
    seed: int
    workers: int = 2
    publishers: int = 1
    lease: timedelta | None = None
    fault_every: timedelta = timedelta(seconds=1)
    enough: Callable[[Mapping[str, int]], bool] = _any
    extra_faults: Sequence[ExtraFault] = ()
    pause: timedelta = timedelta(milliseconds=50)
    poisons: int = 2
    flood: int = 0
    trouble: float = 0.05
    patience: timedelta = timedelta(minutes=5)
    drain: timedelta = timedelta(minutes=5)
    command: Sequence[str] = COMMAND


class Trial:
    """A store, a target and a fleet; random trials and scripted ones are both played on it."""

    def __init__(
        self, plan: TrialPlan, store: TrialStore, bus: Bus, target: CallTarget, directory: Path, history: History
    ) -> None:
        self.plan = plan
        self.store = store
        self.bus = bus
        self.target = target
        self.directory = directory
        self.stagehand = ScriptRunner(directory)
        self.history = history
        self.lease = plan.lease or store.shortest_lease
        self.rng = random.Random(plan.seed)  # noqa: S311 - a seeded trial, no secret
        part = ProcessConfig(
            role="worker",
            name="",
            url=store.url,
            schema=store.schema,
            directory=str(directory),
            target_port=target.port,
            seed=0,
            lease_seconds=self.lease.total_seconds(),
            trouble=plan.trouble,
            pause_seconds=plan.pause.total_seconds(),
            steady_lease_seconds=store.shortest_lease.total_seconds(),
        )
        self.fleet = Fleet(part, history, random.Random(plan.seed + 1), command=plan.command)  # noqa: S311 - as above
        self._operations = operations_of(bus)
        self.operator = Operator(self._operations, self.publish, history, random.Random(plan.seed + 2))  # noqa: S311 - as above
        self.log_reader = LogReader(self._operations)
        self._closings: set[asyncio.Task[None]] = set()
        target.on_taken = self._close_later
        self._began = time.monotonic()
        self._drain_began = 0.0
        self._drained_seconds = 0.0

    async def ready(self) -> None:
        """Wait until every process has opened its bus; what came before does not count as a part of the trial."""

        def are_ready(entries: list[HistoryEntry]) -> bool:
            return sum(entry.what == "ready" for entry in entries) >= len(self.fleet.everybody)

        def has_failed(entries: list[HistoryEntry]) -> bool:
            return any(entry.what == "exited" and entry.facts["code"] > 0 for entry in entries)

        with contextlib.suppress(TimeoutError):
            await self.until(lambda entries: are_ready(entries) or has_failed(entries))
        if not are_ready(read_history(self.directory)):
            words = "".join(path.read_text() for path in self.directory.glob("*.stderr")).strip()
            raise Unavailable(f"the processes under test do not start: {words[-500:] or 'no word of them'}")
        self._began = time.monotonic()

    async def publish(self, *envelopes: Envelope, at: datetime | None = None) -> None:
        """Publish for certain, in one transaction."""
        self.history.write("publishing", events=[describe(envelope, due=at) for envelope in envelopes])
        async with self.bus.transaction() as transaction:
            await transaction.publish(*envelopes, at=at)
        self.history.write("published", events=[str(envelope.event_id) for envelope in envelopes])

    def _close_later(self, call: str) -> None:
        """Publish the event that closes a call which the target has only taken on, until it is there for certain."""

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

    async def read_clock(self, known: Envelope) -> None:
        """Write down what the clock of the store says: it decides when a delayed event is due."""
        asked = time.monotonic_ns()
        situation = (await self._operations.situations(known.event_id))[0]
        self.history.write("clock", asked=asked, store=situation.now.timestamp())

    async def until(self, seen: Callable[[list[HistoryEntry]], object], *, seconds: float | None = None) -> None:
        """Wait until the history shows something."""
        async with asyncio.timeout(seconds or self.plan.patience.total_seconds()):
            while not seen(read_history(self.directory)):  # noqa: ASYNC110 - other processes write it
                await asyncio.sleep(_LOOK_EVERY_SECONDS)

    async def watch(self) -> None:
        """Look into the store again and again for what must never be there, without being in the way for long."""
        while True:
            began = time.monotonic()
            with contextlib.suppress(KingdomError):
                for broken in await self.store.broken_invariants():
                    self.history.write("broken", invariant=broken)
            await asyncio.sleep(max(_SAMPLE_EVERY_SECONDS, _SAMPLE_PAUSE_SHARE * (time.monotonic() - began)))

    async def feel_delays(self) -> None:
        """Write down how late the machine is with one who only looks at the clock, so that no bound is too short."""
        while True:
            due = time.monotonic() + _BEAT_SECONDS
            await asyncio.sleep(_BEAT_SECONDS)
            if (late := time.monotonic() - due) > _LATE_SECONDS:
                self.history.write("late", seconds=round(late, 3))

    async def publish_long_jobs(self) -> None:
        """Publish what lasts longer than its lease, for the worker that nobody strikes."""
        work_ms = int(self.store.shortest_lease.total_seconds() * _STEADY_LEASES * 1000)
        jobs = [Job(work_ms=work_ms, call=f"long-{number}") for number in range(_STEADY_CALLS)]
        await self.publish(*(CALLED.envelope(job, stream=STEADY) for job in jobs))

    async def poison(self) -> None:
        """Publish events that kill their worker, among healthy ones, during the first half."""
        for _ in range(self.plan.poisons):
            for stream, key in ((ANY, None), (LINE, "poisoned")):
                neighbours = [draw_reaction(self.rng, stream) for _ in range(_POISON_NEIGHBOURS)]
                poison = REACTED.envelope(Job(fate="poison"), stream=stream, partition_key=key)
                neighbours.insert(self.rng.randrange(_POISON_NEIGHBOURS), poison)
                # Where the store itself is tormented, it may be away just now.
                with contextlib.suppress(Unavailable):
                    await self.publish(*neighbours)
            await asyncio.sleep(self.plan.seconds / 2 / self.plan.poisons)

    async def drain(self) -> None:
        """Let the workers finish everything, as long as the plan allows, then end them."""
        self._drain_began = time.monotonic()
        await self.fleet.retire("publisher")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.plan.drain.total_seconds()):
                while not await self._is_at_rest():  # noqa: ASYNC110 - other processes bring it to rest
                    await asyncio.sleep(_LOOK_EVERY_SECONDS)
        self._drained_seconds = time.monotonic() - self._drain_began
        await self.fleet.retire()
        await self.target.settle_down()
        for broken in await self.store.broken_invariants():
            self.history.write("broken", invariant=broken)

    async def _is_at_rest(self) -> bool:
        """Tell whether everything has ended; what only an operator can end is ended on the way."""
        with contextlib.suppress(KingdomError):
            await self.operator.let_all_run()
            return not (await self.operator.tend() or self._closings or await self.store.unfinished())
        return False

    async def evidence(self) -> Evidence:
        """Return all that is known of what happened."""
        await self._surely(self.log_reader.finish)
        return Evidence(
            streams={name: self.bus.topology.stream(name) for name in self.bus.topology.names()},
            history=read_history(self.directory),
            events=await self.store.events(),
            applied=await self.store.log_data(APPLIED),
            read=self.log_reader.read,
            tallies={tally.id: tally.doc["count"] for tally in await self._records(TALLY)},
            records={record.id: record.state for record in await self._records(FLEETING)},
        )

    def judge(self, evidence: Evidence) -> TrialReport:
        """Return the verdict on everything that happened."""
        seconds = self._drain_began - self._began
        return judge(evidence, seed=self.plan.seed, seconds=seconds, drained_seconds=self._drained_seconds)

    async def _records(self, kind: RecordKind) -> list[Record]:
        async def find() -> list[Record]:
            async with self.bus.transaction() as transaction:
                return await transaction.find(RecordQuery(kind=kind.name, limit=_RECORDS_MAX))

        return await self._surely(find)

    async def _surely(self, read: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Read from the store; connections that broke with it, and lay idle since then, are used up first."""
        async with asyncio.timeout(self.plan.patience.total_seconds()):
            while True:
                with contextlib.suppress(Unavailable):
                    return await read()


@asynccontextmanager
async def open_trial(url: str, plan: TrialPlan, directory: Path | None = None) -> AsyncIterator[Trial]:
    """Make everything that a trial needs, and remove it afterwards whatever happens; a given directory stays."""
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(server_url(url))
        store = trial_store(server, f"kingdom_verify_{secrets.token_hex(4)}")
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kingdom-verify-")))
        elif read_history(directory):
            raise Misconfigured(f"{directory} has the history of an earlier trial: name another directory")
        stack.push_async_callback(store.drop)
        await store.create()
        streams = topology(plan.lease or store.shortest_lease, store.shortest_lease)
        bus = await stack.enter_async_context(open_bus(store.safe_url, streams, KINDS, schema=store.schema))
        history, outside = History(directory, "trial"), History(directory, "target")
        stack.callback(history.close)
        stack.callback(outside.close)
        target = CallTarget(outside)
        await target.start()
        stack.push_async_callback(target.stop)
        trial = Trial(plan, store, bus, target, directory, history)
        stack.push_async_callback(trial.fleet.retire)
        stack.callback(asyncio.create_task(trial.feel_delays(), name="verify-delays").cancel)
        yield trial


async def run_trial(url: str, plan: TrialPlan, directory: Path | None = None) -> TrialReport:
    """Play a random trial and return the verdict."""
    async with open_trial(url, plan, directory) as trial:
        for _ in range(plan.workers):
            trial.fleet.add("worker")
        for _ in range(plan.publishers):
            trial.fleet.add("publisher")
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
        # Whatever the others draw, one must come to be dead.
        doomed = REACTED.envelope(Job(fate="doomed"), stream=LINE, partition_key="doomed")
        await trial.publish(doomed)
        await trial.read_clock(doomed)
        await trial.ready()
        await trial.publish_long_jobs()
        steady_seconds = trial.store.shortest_lease.total_seconds()
        async with _meanwhile(trial.watch()), _meanwhile(trial.log_reader.run()):
            try:
                async with (
                    _meanwhile(trial.operator.run(cancelled_after_seconds=steady_seconds / 2)),
                    _meanwhile(nemesis.torment(every_seconds=plan.fault_every.total_seconds())),
                ):
                    await asyncio.gather(trial.poison(), asyncio.sleep(plan.seconds))
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(plan.patience.total_seconds()):
                            while not plan.enough(nemesis.struck):  # noqa: ASYNC110 - the nemesis does it by and by
                                await asyncio.sleep(_LOOK_EVERY_SECONDS)
            finally:
                await nemesis.relent()
            await trial.drain()
        return trial.judge(await trial.evidence())


async def verify(
    url: str, *, seconds: float = 10.0, seed: int | None = None, directory: Path | None = None
) -> TrialReport:
    """Kill and check in a throwaway schema of the user's own database, or a throwaway directory; always dropped."""
    plan = TrialPlan(
        seconds=seconds,
        seed=secrets.randbits(32) if seed is None else seed,
        poisons=1,
        fault_every=timedelta(seconds=min(1.0, seconds / 8)),
    )
    return await run_trial(url, plan, directory)


@asynccontextmanager
async def _meanwhile(endless: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run something beside the block; where it fails, the block ends too."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(endless)
        yield
        task.cancel()
