"""Streams on Kafka keep their guarantees under faults, and the checker finds the defect of each broken variant."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.chaos.__main__ import FAULT_KINDS_IN_SHORT
from bench.chaos.scenarios import Scenario
from bench.chaos.scenarios_kafka import KAFKA_SCENARIOS
from bench.chaos.variants_kafka import KAFKA_VARIANTS
from bench.kafka.broker import PrivateKafka
from tests.benches import bench

ROOT = Path(__file__).parents[2]
SECONDS = 10
# The shortest run that has events that kill their worker. A variant that loses them is found in every run.
POISON_SECONDS = 30
ONE_BROKER = ("--brokers", "1")
EVENTS = 400
APPLY = """
import os
from bench.chaos.backends import TRANSPORTS
for name, variant in TRANSPORTS["kafka"].variants.items():
    if os.fork() == 0:
        variant()
        os._exit(0)
    if os.waitstatus_to_exitcode(os.wait()[1]):
        raise SystemExit(f"{name} cannot be applied")
"""


@pytest.fixture(scope="module")
def quick_broker() -> Iterator[PrivateKafka]:
    """A broker that notices a stopped worker within seconds."""
    with PrivateKafka(quick=True) as broker:
        yield broker


def test_every_variant_has_a_scenario() -> None:
    assert {scenario.variant for scenario in KAFKA_SCENARIOS} == KAFKA_VARIANTS.keys()


def test_every_variant_can_be_applied_to_the_code() -> None:
    subprocess.run([sys.executable, "-c", APPLY], cwd=ROOT, check=True)


@pytest.mark.kafka
@pytest.mark.parametrize("scenario", KAFKA_SCENARIOS, ids=lambda scenario: scenario.variant)
async def test_the_checker_catches_the_broken_variant(scenario: Scenario, dsn: str, quick_broker: PrivateKafka) -> None:
    report = await scenario.run(dsn, "kafka", broken=True, kafka_servers=quick_broker.servers)
    assert report.violations_by_kind[scenario.expects.value] > 0
    assert report.violations_by_kind["processes failed"] == 0


@pytest.mark.kafka
@pytest.mark.parametrize("scenario", KAFKA_SCENARIOS, ids=lambda scenario: scenario.variant)
async def test_the_intact_bus_passes_the_scenario_that_a_broken_variant_fails(
    scenario: Scenario, dsn: str, quick_broker: PrivateKafka
) -> None:
    report = await scenario.run(dsn, "kafka", broken=False, kafka_servers=quick_broker.servers)
    assert report.violations == []


@pytest.mark.kafka
def test_the_bus_keeps_its_guarantees_while_couriers_workers_brokers_and_the_database_fail() -> None:
    words = ("--transport", "kafka", *ONE_BROKER, "--seconds", str(SECONDS), "--no-variants", "--json", "-")
    figures = json.loads(bench("chaos", *words, ends_with=0).stdout.splitlines()[-1])
    assert set(figures["findings"].values()) == {0}
    assert len(figures["faults_by_kind"]) >= FAULT_KINDS_IN_SHORT
    assert figures["events"]["DONE"] > 0


@pytest.mark.kafka
def test_a_broken_bus_does_not_pass_while_its_environment_fails() -> None:
    words = ("--transport", "kafka", *ONE_BROKER, "--seconds", str(POISON_SECONDS), "--variant", "offset_first")
    figures = json.loads(bench("chaos", *words, ends_with=1).stdout.splitlines()[-1])
    assert figures["findings"]["events lost"] > 0


@pytest.mark.kafka
def test_two_stores_hand_over_each_event_once_while_both_are_killed() -> None:
    figures = json.loads(bench("two_stores", *ONE_BROKER, "--events", str(EVENTS), ends_with=0).stdout.splitlines()[-1])
    assert figures["ok"] is True
    assert min(figures["kills"].values()) > 0
    assert all(store["applied"] >= EVENTS for store in figures["stores"].values())


@pytest.mark.kafka
def test_two_stores_with_a_broken_courier_do_not_pass() -> None:
    words = (*ONE_BROKER, "--events", str(EVENTS), "--variant", "cursor_outside")
    figures = json.loads(bench("two_stores", *words, ends_with=1).stdout.splitlines()[-1])
    assert figures["stores"]["south"]["twice"] > 0
