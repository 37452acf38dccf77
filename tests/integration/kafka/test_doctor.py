import pytest

from bench.kafka.broker import PrivateKafka
from bench.servers import LOOPBACK, free_port
from kingdom.doctor.check import Status
from kingdom.doctor.context import CheckContext
from kingdom.doctor.kafka import check_kafka
from kingdom.settings import Settings


def context(servers: str | None) -> CheckContext:
    return CheckContext(settings=Settings(database_url="file:realm", kafka_servers=servers))


async def test_without_brokers_there_is_nothing_to_check() -> None:
    assert (await check_kafka(context(None))).status == Status.SKIPPED


@pytest.mark.kafka
async def test_a_single_broker_works_but_is_not_safe(broker: PrivateKafka) -> None:
    assert (await check_kafka(context(broker.servers))).status == Status.WARN


@pytest.mark.kafka
async def test_brokers_that_do_not_answer_are_reported() -> None:
    result = await check_kafka(context(f"{LOOPBACK}:{free_port()}"))
    assert result.status == Status.FAIL
    assert "KINGDOM_KAFKA_SERVERS" in result.fix
