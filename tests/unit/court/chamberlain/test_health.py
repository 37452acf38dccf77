"""Levels of health: their thresholds, when a level rises and falls, and what is logged."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from kingdom.chronicle.events import HealthChanged, ResourceWarned
from kingdom.court.chamberlain.health import CPU, DISK, MEMORY, HealthLevel, HealthState, next_health
from kingdom.court.chamberlain.settings import HealthSettings

NOW = datetime(2026, 2, 7, 10, tzinfo=UTC)
SETTINGS = HealthSettings()
ROUND = timedelta(seconds=30)


def used(cpu: float = 10, memory: float = 10, disk: float = 10) -> dict[str, float]:
    return {CPU: cpu, MEMORY: memory, DISK: disk}


def seen(
    before: HealthState, metrics: dict[str, float], *, name: str = "here", now: datetime = NOW, floor: str = ""
) -> HealthState:
    return next_health(before, name, metrics, now, SETTINGS, floor)[0]


def levels_of(*values: float) -> list[str]:
    """Return the levels after each of these values of the processors."""
    health, found = HealthState(), []
    for value in values:
        health = seen(msgspec.convert(msgspec.to_builtins(health), HealthState), used(cpu=value))
        found.append(str(health.level))
    return found


@pytest.mark.parametrize(
    ("metrics", "level", "reason"),
    [
        (used(cpu=59.9), "green", "cpu_percent: 60"),
        (used(cpu=60), "yellow", "cpu_percent: 60"),
        (used(cpu=72), "yellow", "cpu_percent: 72"),
        (used(cpu=79.9), "yellow", "cpu_percent: 80"),
        (used(cpu=80), "orange", "cpu_percent: 80"),
        (used(cpu=90), "red", "cpu_percent: 90"),
        (used(memory=61), "yellow", "memory_percent: 61"),
        (used(memory=97), "red", "memory_percent: 97"),
        (used(disk=84.9), "green", "disk_percent: 85"),
        (used(disk=85), "yellow", "disk_percent: 85"),
        (used(disk=95), "orange", "disk_percent: 95"),
        (used(disk=100), "orange", "disk_percent: 100"),
        (used(cpu=65, memory=85, disk=86), "orange", "memory_percent: 85"),
    ],
)
def test_the_worst_resource_determines_the_level(metrics: dict[str, float], level: str, reason: str) -> None:
    health = seen(HealthState(), metrics)
    assert (health.level, health.reason, health.metrics) == (level, reason, metrics)


def test_a_level_rises_at_once() -> None:
    assert levels_of(10, 95) == ["green", "red"]


def test_a_level_is_left_only_five_points_below_its_threshold() -> None:
    assert levels_of(62, 59, 61, 55.1, 55, 54.9) == ["yellow", "yellow", "yellow", "yellow", "yellow", "green"]
    assert levels_of(91, 86, 84, 76, 74, 50) == ["red", "red", "orange", "orange", "yellow", "green"]


def test_a_value_that_swings_around_a_threshold_changes_the_level_once() -> None:
    found = levels_of(*[58, 61] * 20)
    assert found == ["green"] + ["yellow"] * 39


def test_a_change_is_reported_once_with_its_reason() -> None:
    health, events = next_health(HealthState(), "here", used(cpu=72), NOW, SETTINGS)
    assert events == [
        ResourceWarned(metric=CPU, value=72, threshold=60),
        HealthChanged(from_="green", to="yellow", reason="cpu_percent: 72"),
    ]
    assert next_health(health, "here", used(cpu=75), NOW + ROUND, SETTINGS)[1] == []


def test_each_resource_warns_when_it_crosses_and_not_while_it_stays() -> None:
    health, events = next_health(HealthState(), "here", used(cpu=95), NOW, SETTINGS)
    assert ResourceWarned(metric=CPU, value=95, threshold=90) in events
    health, events = next_health(health, "here", used(cpu=95, memory=82), NOW + ROUND, SETTINGS)
    assert events == [ResourceWarned(metric=MEMORY, value=82, threshold=80)]


def test_many_timeouts_make_the_health_at_least_yellow() -> None:
    floor = "soldier.timeout: 5"
    assert (seen(HealthState(), used(), floor=floor).level, seen(HealthState(), used(), floor=floor).reason) == (
        "yellow",
        floor,
    )
    assert seen(HealthState(), used(cpu=85), floor=floor).reason == "cpu_percent: 85"
    assert seen(seen(HealthState(), used(), floor=floor), used(), now=NOW + ROUND).level is HealthLevel.GREEN


@pytest.mark.parametrize(("cpu", "share"), [(10, 1), (65, 0.5), (85, 0), (95, 0)])
def test_processor_pressure_leaves_fewer_slots_without_stopping_work(cpu: float, share: float) -> None:
    health = seen(HealthState(), used(cpu=cpu))
    assert (health.stop_level, health.slot_share, health.slot_reason) == ("green", share, f"cpu_percent: {cpu}")


def test_the_stop_level_ignores_the_processors_even_if_they_are_the_worst_resource() -> None:
    health = seen(HealthState(), used(cpu=95, memory=82))
    assert (health.level, health.reason) == ("red", "cpu_percent: 95")
    assert (health.stop_level, health.stop_reason) == ("orange", "memory_percent: 82")
    assert seen(HealthState(), used(cpu=95, disk=96)).stop_reason == "disk_percent: 96"
    health = seen(HealthState(), used(cpu=95), floor="soldier.timeout: 5")
    assert (health.stop_level, health.stop_reason) == ("yellow", "soldier.timeout: 5")


def test_a_busy_machine_reduces_only_its_own_share_of_the_slots() -> None:
    health = seen(HealthState(), used(cpu=95), name="there")
    assert seen(health, used(cpu=5), name="here").slot_share == 0.5


def test_the_worst_of_several_machines_counts_until_it_is_silent() -> None:
    health = seen(HealthState(), used(cpu=92), name="there")
    health = seen(health, used(cpu=5), name="here", now=NOW + timedelta(seconds=120))
    assert (health.level, health.reason) == ("red", "cpu_percent: 92")
    health = seen(health, used(cpu=5), name="here", now=NOW + timedelta(seconds=121))
    assert (health.level, list(health.machines)) == ("green", ["here"])
