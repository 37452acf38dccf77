"""Broken variants of streams on Kafka. Each patches its queries or classes in its own process."""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench.chaos.variants import forget_renewals, rely_on_leases, replace
from bench.chaos.variants_postgres import rewrite
from kingdom.backends.kafka import KafkaBus
from kingdom.backends.kafka.batches import OpenBatches, OpenDelivery
from kingdom.backends.kafka.courier_queue import CarriedEvent
from kingdom.backends.kafka.topic_writer import SentPosition, TopicWriter
from kingdom.backends.kafka.transaction import KafkaTransaction
from kingdom.bus.delivery import Delivery
from kingdom.bus.port import Transaction
from kingdom.bus.stream import Stream
from kingdom.verify import process
from kingdom.verify.process_config import ProcessConfig
from kingdom.verify.script import ScriptRunner

# The point of a script before a worker locks what it holds, and the one after a courier has sent an event.
HOLD, SENT = "hold", "sent"
_runners: list[ScriptRunner] = []


def ordered_by_xid() -> None:
    """Send the events of a tick in the order in which their transactions began to write."""
    by_xid = r"SELECT found.* FROM (\1) AS found JOIN \2courier_event AS event USING (seq) ORDER BY event.xid, seq"
    rewrite({"events_of_tick": (r"(SELECT .*?FROM (\S+)courier_event.*)ORDER BY seq", by_xid)})


def no_ticks() -> None:
    """Send the events above the highest number that is sent, instead of those between two snapshots."""
    above = r"""FROM \1 WHERE seq > greatest(%(after)s, (SELECT coalesce(max(seq), 0) FROM \1
                              WHERE pg_visible_in_snapshot(xid, %(earlier)s::pg_snapshot)))
                    AND pg_visible_in_snapshot(xid, %(snapshot)s::pg_snapshot) ORDER BY seq"""
    rewrite({"events_of_tick": (r"FROM (\S+courier_event)\s+WHERE xid >= .*", above)})


def offset_first() -> None:
    """Record offsets as handled before the handlers run."""
    claim, record = KafkaBus._claim_from_topic, KafkaTransaction._record_offsets
    recorded: set[int] = set()

    async def record_and_claim(bus: KafkaBus, stream: Stream, limit: int) -> list[Delivery]:
        deliveries = await claim(bus, stream, limit)
        places = bus._batches.find([each.position for each in deliveries])
        async with bus.transaction() as transaction:
            assert isinstance(transaction, KafkaTransaction)
            await record(transaction, list(places.values()))
        recorded.update(places)
        return deliveries

    async def record_others(transaction: KafkaTransaction, places: Sequence[OpenDelivery]) -> None:
        await record(transaction, [each for each in places if each.delivery.position not in recorded])

    replace(KafkaBus, "_claim_from_topic", record_and_claim)
    replace(KafkaTransaction, "_record_offsets", record_others)


def no_epoch() -> None:
    """Settle events of a partition without checking whether another process has taken it."""

    def keep(_: OpenBatches) -> None:
        return

    rewrite(
        {
            "hold_partitions": (r"USING \(partition, epoch\)", "USING (partition)"),
            "settle_partitions": (r"AND p\.epoch = mine\.epoch", ""),
        }
    )
    rely_on_leases()
    forget_renewals(KafkaBus)
    replace(OpenBatches, "give_back_expired", keep)


def cursor_outside() -> None:
    """Store the position of the courier in a transaction of its own, after that of the events."""
    send = TopicWriter.send

    def send_apart(writer: TopicWriter, tick: int, events: Sequence[CarriedEvent], reached: SentPosition) -> None:
        if events:
            writer._producer.begin_transaction()
            for event in events:
                writer._produce(tick, event)
            writer._commit()
        for event in events:
            _runner().run_now(json.loads(event.value)["payload"].get("script", {}), str(event.event_id), SENT)
        send(writer, tick, (), reached)

    replace(TopicWriter, "send", send_apart)


KAFKA_VARIANTS: Mapping[str, Callable[[], None]] = {
    variant.__name__: variant for variant in (ordered_by_xid, no_ticks, offset_first, no_epoch, cursor_outside)
}


def script_holds() -> None:
    """Let a script stop a worker before it locks what it holds."""
    run_process, transaction = process.run_process, KafkaBus.transaction

    async def run_scripted(config: ProcessConfig) -> None:
        run_scripts_in(Path(config.directory))
        await run_process(config)

    @asynccontextmanager
    async def transaction_scripted(
        bus: KafkaBus, hold: Sequence[Delivery] = (), *, optimistic: bool = False
    ) -> AsyncIterator[Transaction]:
        for delivery in hold:
            script = delivery.envelope.payload.get("script", {})
            await _runner().run(script, str(delivery.envelope.event_id), HOLD)
        async with transaction(bus, hold, optimistic=optimistic) as opened:
            yield opened

    replace(process, "run_process", run_scripted)
    replace(KafkaBus, "transaction", transaction_scripted)


def run_scripts_in(directory: Path) -> None:
    """Let the scripts of this process use a directory."""
    _runners.append(ScriptRunner(directory))


def _runner() -> ScriptRunner:
    (runner,) = _runners
    return runner
