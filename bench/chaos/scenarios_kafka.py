"""Scripted trials of streams on Kafka: each one triggers the fault of one broken variant deterministically."""

import signal
from datetime import timedelta
from uuid import uuid4

from psycopg import AsyncConnection, IsolationLevel

from bench.chaos.scenarios import Scenario, a_worker_dies, find_all, find_stopped, seen, start_workers
from bench.chaos.variants_kafka import HOLD, SENT
from kingdom.backends.postgres import PostgresBus
from kingdom.bus import Envelope
from kingdom.verify import ViolationKind
from kingdom.verify.history import HistoryEntry
from kingdom.verify.trial import Trial
from kingdom.verify.workload import ANY, LINE, REACTED, Job, describe

KAFKA = frozenset({"kafka"})
_KEEP = timedelta(hours=1)
_OWNERS = 2


async def _a_later_event_is_in_an_earlier_transaction(trial: Trial) -> None:
    """Let a transaction write first, and publish after another transaction has published and committed."""
    first, second = _in_line(), _in_line()
    async with trial.bus.transaction() as transaction:
        await transaction.once("verify.slow", str(uuid4()), _KEEP)
        await trial.publish(first)
        trial.history.write("publishing", events=[describe(second)])
        await transaction.publish(second)
    trial.history.write("published", events=[str(second.event_id)])
    await start_workers(trial, 1)


async def _a_transaction_commits_late(trial: Trial) -> None:
    """Let a transaction commit after the courier has sent an event with a higher number."""
    assert isinstance(trial.bus, PostgresBus)
    late, early = _in_line(), _in_line()
    async with await AsyncConnection.connect(trial.store.safe_url) as connection:
        await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        trial.history.write("publishing", events=[describe(late)])
        async with trial.bus.join(connection) as transaction:
            await transaction.publish(late)
        await trial.publish(early)
        await start_workers(trial, 1)
        await trial.wait_until(seen("finished", event=str(early.event_id)))
        await connection.commit()
    trial.history.write("published", events=[str(late.event_id)])


async def _a_stopped_owner_wakes_up(trial: Trial) -> None:
    """Stop a worker before it locks its partition. It continues when another worker owns the partition."""
    event = REACTED.envelope(Job(script={HOLD: "stop_then_wait"}), stream=ANY)
    await trial.publish(event)
    await start_workers(trial, 2)
    sleeper = await find_stopped(trial)
    assert sleeper is not None
    await trial.wait_until(lambda entries: _count_claims(entries, event) >= _OWNERS)
    trial.fleet.send(sleeper, signal.SIGCONT)
    ends = ("settled", "refused", "lease_lost")
    await trial.wait_until(
        lambda entries: any(e.what in ends and e.process.startswith(f"{sleeper.slot}.") for e in entries)
    )
    trial.scripts.open_gate(str(event.event_id))


async def _a_courier_dies_after_it_has_sent(trial: Trial) -> None:
    """Let a courier die between two transactions that the unchanged product does not separate."""
    event = _in_line(script={SENT: "die"})
    await trial.publish(event)
    await start_workers(trial, 1)
    await trial.wait_until(seen("finished", event=str(event.event_id)))
    # The next courier sends this event after everything that it repeats.
    await trial.publish(_in_line())


KAFKA_SCENARIOS = (
    Scenario("ordered_by_xid", ViolationKind.ORDER, _a_later_event_is_in_an_earlier_transaction, backends=KAFKA),
    Scenario("no_ticks", ViolationKind.LOST, _a_transaction_commits_late, endless=True, backends=KAFKA),
    Scenario("offset_first", ViolationKind.LOST, a_worker_dies, endless=True, backends=KAFKA),
    Scenario("no_epoch", ViolationKind.STALE, _a_stopped_owner_wakes_up, backends=KAFKA),
    Scenario("cursor_outside", ViolationKind.TWICE, _a_courier_dies_after_it_has_sent, backends=KAFKA),
)


def _count_claims(entries: list[HistoryEntry], event: Envelope) -> int:
    claims = (claim for entry in find_all(entries, "claimed") for claim in entry.facts["events"])
    return sum(name == str(event.event_id) for _, name, *_ in claims)


def _in_line(*, script: dict[str, str] | None = None) -> Envelope:
    return REACTED.envelope(Job(script=script or {}), stream=LINE, partition_key="key")
