"""Scripted trials: each one triggers the fault of one broken variant deterministically."""

import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import psutil

from bench.chaos.process import AS_IT_IS
from kingdom.clock import utc_now
from kingdom.verify import TrialPlan, ViolationKind
from kingdom.verify.fleet import COMMAND, FleetMember
from kingdom.verify.history import HistoryEntry
from kingdom.verify.report import TrialReport
from kingdom.verify.trial import Trial, open_trial
from kingdom.verify.workload import (
    ANY,
    BLOCKING,
    CALL_VISIBLE_IN_TIME,
    CALL_WITH_IDENTIFIER,
    LINE,
    PAUSED,
    REACTED,
    Job,
)

BOTH = frozenset({"postgres", "files"})
FILES = frozenset({"files"})
# Long enough for a healthy bus on a busy machine.
_PATIENCE = timedelta(minutes=5)
# The limit of a trial that never finishes. With Kafka, workers get their partitions within this time.
_GIVE_UP = timedelta(seconds=5)
# The streams that Kafka carries in a trial with brokers.
CARRIED = (ANY, LINE)
_A_WHILE = timedelta(seconds=10)
_TRIES = 3
_DELAYED_EVENTS = 10
# Longer than the polling interval of a worker.
_WORK_MS = 1_000


class _KilledAsleepError(Exception):
    """Raised if a process that stopped itself was killed, because another of its threads held the lock."""


def process_command(backend: str, variant: str) -> tuple[str, ...]:
    """Return the command of a process under test, perhaps with a broken variant."""
    return (COMMAND[0], "-m", "bench.chaos.process", backend, variant)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scripted trial for a variant, and the violation that it must cause.

    An `endless` trial never finishes with its variant.
    """

    variant: str
    expects: ViolationKind
    act: Callable[[Trial], Awaitable[None]]
    endless: bool = False
    lease: timedelta = timedelta(seconds=2)
    backends: frozenset[str] = BOTH

    async def run(self, url: str, backend: str, *, broken: bool, kafka_servers: str = "") -> TrialReport:
        """Run the trial with the variant or the unchanged product. Repeat it if a stopped process was killed."""
        for _ in range(_TRIES - 1):
            with suppress(_KilledAsleepError):
                return await self._run(url, backend, kafka_servers, broken=broken)
        return await self._run(url, backend, kafka_servers, broken=broken)

    async def _run(self, url: str, backend: str, kafka_servers: str, *, broken: bool) -> TrialReport:
        drain = _GIVE_UP if broken and self.endless else _PATIENCE
        plan = TrialPlan(
            seconds=0,
            seed=1,
            lease=self.lease,
            failure_rate=0,
            kafka_servers=kafka_servers,
            carried=CARRIED if kafka_servers else (),
            drain=drain,
            command=process_command(backend, self.variant if broken else AS_IT_IS),
        )
        async with open_trial(url, plan) as trial:
            await self.act(trial)
            await trial.drain()
            return trial.report(await trial.evidence())


async def _a_stopped_worker_wakes_up(trial: Trial) -> None:
    """Stop a worker before its call. When it continues, another worker handles the same event."""
    event = CALL_WITH_IDENTIFIER.envelope(Job(call="one", script={"send:1": "stop", "send:2": "wait"}), stream=ANY)
    await start_workers(trial, 2)
    await trial.publish(event)
    await trial.wait_until(seen("reconciled", key="one"))
    sleeper = await _wake_stopped(trial)
    await trial.wait_until(lambda entries: _decided(entries, sleeper))
    trial.scripts.open_gate(str(event.event_id))


async def a_worker_dies(trial: Trial) -> None:
    """Let a worker die in a handler."""
    event = REACTED.envelope(Job(script={"react:1": "die"}), stream=ANY)
    await trial.publish(event)
    await start_workers(trial, 1)
    await trial.wait_until(seen("exited", code=-signal.SIGKILL))


async def _an_answer_is_lost(trial: Trial) -> None:
    await trial.publish(CALL_WITH_IDENTIFIER.envelope(Job(call="one", answers=("accept_then_fail",)), stream=ANY))
    await start_workers(trial, 1)
    await trial.wait_until(seen("accepted", key="one"))


async def _a_stopped_sender_wakes_up(trial: Trial) -> None:
    """Stop a worker with its call half sent. Another worker finds the call absent, and sends it."""
    await start_workers(trial, 2)
    await trial.publish(CALL_WITH_IDENTIFIER.envelope(Job(call="one", script={"send:1": "stop"}), stream=ANY))
    await trial.wait_until(seen("accepted", key="one"))
    await _wake_stopped(trial)
    await trial.wait_until(lambda entries: len(find_all(entries, "received", key="one")) > 1)


async def _a_worker_dies_between(trial: Trial) -> None:
    """Let a worker die between two transactions that the unchanged product does not separate."""
    event = REACTED.envelope(Job(script={"between:1": "die"}), stream=ANY)
    await trial.publish(event)
    await start_workers(trial, 1)
    await trial.wait_until(seen("claimed"))


async def _poison_among_others(trial: Trial) -> None:
    jobs = [Job(), Job(), Job(fate="poison"), Job(), Job()]
    await trial.publish(*(REACTED.envelope(job, stream=ANY) for job in jobs))
    await start_workers(trial, 1)
    await trial.wait_until(lambda entries: len(find_all(entries, "exited", code=-signal.SIGKILL)) > 2)


async def _a_slow_call_in_line(trial: Trial) -> None:
    """Put a call between two reactions of one key. The later reaction must not overtake it."""
    slow = CALL_WITH_IDENTIFIER.envelope(Job(call="one"), stream=LINE, partition_key="key")
    first, last = (REACTED.envelope(Job(), stream=LINE, partition_key="key") for _ in range(2))
    await trial.publish(first, slow, last)
    await start_workers(trial, 1)
    await trial.wait_until(seen("accepted", key="one"))


async def _publishers_roll_back(trial: Trial) -> None:
    trial.fleet.add("publisher")
    await trial.wait_until(seen("rolled_back", way="plain"))
    await trial.fleet.retire("publisher")
    await start_workers(trial, 1)


async def _a_worker_dies_in_its_commit(trial: Trial) -> None:
    """Let a worker die with half of its files written, and another worker continue."""
    await start_workers(trial, 1)
    await _publish_before_another(trial, "die")
    await trial.wait_until(seen("settled"))


async def _a_writer_stops(trial: Trial) -> None:
    """Stop a worker that holds the lock. The other worker must continue."""
    await start_workers(trial, 2)
    await _publish_before_another(trial, "stop")
    await find_stopped(trial)


async def _a_writer_stops_and_wakes_up(trial: Trial) -> None:
    """Stop a worker that holds the lock. Another worker continues, and then the first one wakes up."""
    await start_workers(trial, 2)
    await _publish_before_another(trial, "stop")
    sleeper = await find_stopped(trial)
    await trial.wait_until(seen("settled"))
    if sleeper:
        trial.fleet.send(sleeper, signal.SIGCONT)


async def _a_line_forms_behind_a_slow_event(trial: Trial) -> None:
    """Publish two events of a key while an earlier event of the key runs. They must follow in their order."""
    first = REACTED.envelope(Job(script={"react:1": "wait"}), stream=LINE, partition_key="key")
    await trial.publish(first)
    await start_workers(trial, 1)
    await trial.wait_until(seen("started", event=str(first.event_id)))
    await trial.publish(*(REACTED.envelope(Job(), stream=LINE, partition_key="key") for _ in range(2)))
    trial.scripts.open_gate(str(first.event_id))


async def _a_job_lasts_longer_than_its_lease(trial: Trial) -> None:
    """Let a call take so long that only renewals keep its lease."""
    await start_workers(trial, 2)
    work_ms = int(trial.lease.total_seconds() * 1000 * 2)
    await trial.publish(CALL_WITH_IDENTIFIER.envelope(Job(call="one", work_ms=work_ms), stream=ANY))
    await trial.wait_until(seen("accepted", key="one"))


async def _a_publisher_dies(trial: Trial) -> None:
    """Let a publisher die in a transaction with more than one event."""
    # Without a worker, the publisher could wait for ever for a shorter backlog, because it dies in few transactions.
    await start_workers(trial, 1)
    trial.fleet.add("publisher")
    await trial.wait_until(seen("exited", code=-signal.SIGKILL))
    await trial.fleet.retire("publisher")


async def _a_reaction_publishes_two_of_a_key(trial: Trial) -> None:
    await trial.publish(REACTED.envelope(Job(follow_ups=((LINE, "key"), (LINE, "key"))), stream=ANY))
    await start_workers(trial, 1)


async def _some_events_are_delayed(trial: Trial) -> None:
    """Let a worker wait for delayed events of a publisher."""
    known = REACTED.envelope(Job(), stream=ANY)
    await trial.publish(known)
    await trial.record_clock(known)
    await start_workers(trial, 1)
    trial.fleet.add("publisher")
    await trial.wait_until(lambda entries: _delayed(entries) >= _DELAYED_EVENTS)


async def _two_ask_for_one_key(trial: Trial) -> None:
    await trial.publish(*(REACTED.envelope(Job(contest="one"), stream=ANY) for _ in range(2)))
    await start_workers(trial, 1)


async def _a_stream_is_paused(trial: Trial) -> None:
    """Pause a stream that has an event, and wait until a worker has handled a later event of another stream."""
    await trial.operator.pause()
    await trial.publish(REACTED.envelope(Job(), stream=PAUSED))
    await start_workers(trial, 1)
    await _one_more_is_handled(trial)


async def _an_event_dies_in_a_key_that_blocks(trial: Trial) -> None:
    """Let the first event of a key die, and wait until a worker has handled a later event of another stream."""
    jobs = Job(fate="doomed"), Job()
    await trial.publish(*(REACTED.envelope(job, stream=BLOCKING, partition_key="key") for job in jobs))
    await start_workers(trial, 1)
    await trial.wait_until(
        lambda entries: any("dead" in e.facts["outcomes"].values() for e in find_all(entries, "settled"))
    )
    await _one_more_is_handled(trial)


async def _a_call_arrives_late(trial: Trial) -> None:
    await trial.publish(CALL_VISIBLE_IN_TIME.envelope(Job(call="one", answers=("accept_late",)), stream=ANY))
    await start_workers(trial, 1)
    await trial.wait_until(seen("accepted", key="one"))


SCENARIOS = (
    Scenario("no_fence", ViolationKind.STALE, _a_stopped_worker_wakes_up),
    Scenario("no_reaper", ViolationKind.STUCK, a_worker_dies, endless=True),
    Scenario("resend_on_unknown", ViolationKind.REPEATED, _an_answer_is_lost),
    Scenario("fresh_identifier", ViolationKind.REPEATED, _a_stopped_sender_wakes_up),
    Scenario("settle_outside", ViolationKind.TWICE, _a_worker_dies_between),
    Scenario("settle_first", ViolationKind.LOST, _a_worker_dies_between),
    Scenario("blame_batch", ViolationKind.QUARANTINED, _poison_among_others, lease=timedelta(seconds=1)),
    Scenario("split_keys", ViolationKind.ORDER, _a_slow_call_in_line, endless=True),
    Scenario("lazy_reaper", ViolationKind.SLOW, a_worker_dies, lease=timedelta(seconds=1)),
    Scenario("no_renewal", ViolationKind.TAKEN, _a_job_lasts_longer_than_its_lease),
    Scenario("torn_publish", ViolationKind.TORN, _a_publisher_dies),
    Scenario("reversed_order", ViolationKind.ORDER, _a_reaction_publishes_two_of_a_key),
    Scenario("no_delay", ViolationKind.EARLY, _some_events_are_delayed),
    Scenario("generous_keys", ViolationKind.CONTEST, _two_ask_for_one_key),
    Scenario("no_pause", ViolationKind.DISOBEYED, _a_stream_is_paused),
    Scenario("no_block", ViolationKind.OVERTAKEN, _an_event_dies_in_a_key_that_blocks),
    Scenario("impatient", ViolationKind.REPEATED, _a_call_arrives_late),
    Scenario("never_roll_back", ViolationKind.ROLLED_BACK, _publishers_roll_back),
    Scenario("no_replay", ViolationKind.TWICE, _a_worker_dies_in_its_commit, backends=FILES),
    Scenario("files_first", ViolationKind.TWICE, _a_worker_dies_in_its_commit, backends=FILES),
    Scenario("endless_patience", ViolationKind.INVARIANT, _a_writer_stops, lease=timedelta(seconds=5), backends=FILES),
    Scenario(
        "two_writers", ViolationKind.TWICE, _a_writer_stops_and_wakes_up, lease=timedelta(seconds=5), backends=FILES
    ),
    Scenario("wrong_head", ViolationKind.ORDER, _a_line_forms_behind_a_slow_event, backends=FILES),
)


async def _publish_before_another(trial: Trial, at_commit: str) -> None:
    """Publish a job with a script for its commit, and a second job that is due and settled later."""
    job = REACTED.envelope(Job(script={"react:1": "wait", "commit": at_commit}), stream=ANY)
    await trial.publish(job)
    await trial.wait_until(seen("started", event=str(job.event_id)))
    await trial.publish(REACTED.envelope(Job(), stream=ANY), at=utc_now() + _A_WHILE)
    trial.scripts.open_gate(str(job.event_id))


async def _one_more_is_handled(trial: Trial) -> None:
    """Publish an event and wait until it is done. By then the worker has claimed from all its streams."""
    event = REACTED.envelope(Job(work_ms=_WORK_MS), stream=ANY)
    await trial.publish(event)
    await trial.wait_until(seen("finished", event=str(event.event_id)))


def _delayed(entries: list[HistoryEntry]) -> int:
    """Count the delayed events whose publishing was confirmed."""
    published = {event for entry in find_all(entries, "published") for event in entry.facts["events"]}
    described = (each for entry in find_all(entries, "publishing") for each in entry.facts["events"])
    return sum(each["due"] is not None and each["event"] in published for each in described)


async def start_workers(trial: Trial, count: int) -> None:
    """Start workers, and a courier if there are streams on Kafka."""
    if trial.plan.carried:
        trial.fleet.add("courier")
    for _ in range(count):
        trial.fleet.add("worker")
    await trial.wait_until_ready()


async def find_stopped(trial: Trial) -> FleetMember | None:
    """Return the member whose process has stopped itself, or None if it was killed because it held the lock."""
    found: list[FleetMember] = []

    def asleep(entries: list[HistoryEntry]) -> bool:
        found.extend(member for member in trial.fleet.members if _asleep(member))
        return bool(found or find_all(entries, "exited", code=-signal.SIGKILL))

    await trial.wait_until(asleep)
    return found[0] if found else None


async def _wake_stopped(trial: Trial) -> FleetMember:
    """Continue the process that has stopped itself, and return its member."""
    stopped = await find_stopped(trial)
    if stopped is None:
        raise _KilledAsleepError
    trial.fleet.send(stopped, signal.SIGCONT)
    return stopped


def _asleep(member: FleetMember) -> bool:
    if member.process is None or member.process.returncode is not None:
        return False
    return psutil.Process(member.process.pid).status() == psutil.STATUS_STOPPED


def _decided(entries: list[HistoryEntry], member: FleetMember) -> bool:
    ends = ("settled", "refused", "lease_lost")
    return any(entry.what in ends and entry.process.startswith(f"{member.slot}.") for entry in entries)


def seen(what: str, **facts: object) -> Callable[[list[HistoryEntry]], bool]:
    """Return a condition: the history has an entry with this name and these facts."""
    return lambda entries: bool(find_all(entries, what, **facts))


def find_all(entries: list[HistoryEntry], what: str, **facts: object) -> list[HistoryEntry]:
    """Return the entries with this name and these facts."""
    return [entry for entry in entries if entry.what == what and facts.items() <= entry.facts.items()]
