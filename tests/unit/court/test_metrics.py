"""The status of the court, as Prometheus reads it."""

from datetime import UTC, datetime
from math import isnan

import httpx
import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from kingdom.bus.maintenance import serving_metrics
from kingdom.court.chamberlain.budget import TokenStatus
from kingdom.court.health_summary import HealthSummary
from kingdom.court.metrics import CourtMetrics
from kingdom.court.status import (
    CourtStatus,
    HostSummary,
    MoneySummary,
    ParkedRun,
    RoleSummary,
    SlotUse,
    Trouble,
    WaitingSummary,
)
from kingdom.workflow.model.resources.host import HostStatus
from tests.patience import PATIENCE_SECONDS

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
BUSY = CourtStatus(
    at=NOON,
    health=HealthSummary(level="orange", reason="the disk is full"),
    roles=(
        RoleSummary(role="king", silent_seconds=3.5, is_well=True),
        RoleSummary(role="envoy", silent_seconds=None, is_well=False),
    ),
    money=MoneySummary(spent=1.5, set_aside=2.0, limit=300.0, status=TokenStatus.OK),
    slots=(SlotUse(scope="soldiers", held=2, limit=3), SlotUse(scope="repo:acme/app", held=1, limit=1)),
    undecided=4,
    waiting=WaitingSummary(count=5, by_priority={"high": 5}, by_reason={"soldiers is full": 5}),
    assignments={"pending": 0, "in_progress": 2, "needs_human": 1},
    open_asks=1,
    dead_letters={},
    paused={},
    hosts=(HostSummary(name="box", status=HostStatus.UP, slots=3, busy=2),),
    parked=(ParkedRun(workflow="wf-1", until=NOON, reason="usage limit"),),
    troubles=(Trouble(what="envoy does not run", command="kingdom role envoy"),),
)


async def scraped(address: str) -> dict[str, float | dict[str, float]]:
    """Return the value of each metric, or its values by label."""
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
        text = (await client.get(address)).text
    found: dict[str, float | dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        values = {" ".join(sample.labels.values()): sample.value for sample in family.samples}
        found[family.name.removeprefix("kingdom_court_")] = values.get("", values)
    return found


async def test_a_scrape_shows_the_current_status_without_values_that_disappeared() -> None:
    registry = CollectorRegistry()
    court = CourtMetrics(registry)
    async with serving_metrics(registry, host="127.0.0.1", port=0) as address:
        court.show(BUSY)
        assert await scraped(address) == {
            "troubles": 1,
            "seen_timestamp_seconds": NOON.timestamp(),
            "health": 2,
            "role_silent_seconds": {"king": 3.5},
            "money_usd": {"spent": 1.5, "set_aside": 2, "limit": 300},
            "slots_held": {"soldiers": 2, "repo:acme/app": 1},
            "slots_limit": {"soldiers": 3, "repo:acme/app": 1},
            "events_undecided": 4,
            "events_waiting": {"high": 5, "normal": 0, "low": 0},
            "assignments": {"pending": 0, "in_progress": 2, "needs_human": 1},
            "open_questions": 1,
            "hosts": {"UP": 1, "LOST": 0},
            "parked": 1,
        }
        court.show(msgspec.structs.replace(BUSY, roles=(), slots=BUSY.slots[:1], waiting=WaitingSummary(), troubles=()))
        found = await scraped(address)
    assert (found["role_silent_seconds"], found["slots_held"], found["troubles"]) == ({}, {"soldiers": 2}, 0)
    assert found["events_waiting"] == {"high": 0, "normal": 0, "low": 0}


def test_an_unmeasured_value_is_not_shown_as_healthy() -> None:
    registry = CollectorRegistry()
    court = CourtMetrics(registry)

    def value(name: str) -> float:
        return registry.get_sample_value(f"kingdom_court_{name}") or 0.0

    assert isnan(value("health"))
    assert isnan(value("troubles"))
    court.show(msgspec.structs.replace(BUSY, health=HealthSummary(level="unknown", reason="not measured yet")))
    assert isnan(value("health"))
    assert value("troubles") == 1
