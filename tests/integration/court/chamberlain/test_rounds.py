"""The Chamberlain's rounds: every job runs, jobs that must happen once do so, and a failing job stops no other."""

import asyncio
import logging
import os
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import cast

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from kingdom.bus import Operations, Record
from kingdom.court.chamberlain.chamberlain import Chamberlain
from kingdom.court.chamberlain.health import CPU, DISK, MEMORY
from kingdom.court.chamberlain.sensor import MachineSensor
from kingdom.court.chamberlain.settings import ChamberlainSettings, RetentionSettings
from kingdom.court.heartbeat import FileHeartbeatWriter, RecordHeartbeatWriter
from kingdom.court.king.admission_rules import AdmissionLevel, health_rule, slot_limit
from kingdom.court.king.settings import KingSettings
from kingdom.court.quota import MONEY, Quota
from tests.contract.backends import BackendUnderTest
from tests.integration.court.chamberlain.scene import EVERY_KIND, SEOUL, START, ChamberlainScene, FakeSensor, event
from tests.patience import PATIENCE_SECONDS
from tests.unit.court.chamberlain.entries import completed, created, detected, spawned

MIDNIGHT = datetime(2026, 2, 8, tzinfo=SEOUL).astimezone(UTC)


def money(spent: str, day: str) -> Record:
    quota = Quota(scope=MONEY, limit=Decimal(300), spent=Decimal(spent), period=day)
    return Record(kind="quota", id=MONEY, state="current", doc=msgspec.to_builtins(quota))


async def make_rounds(scene: ChamberlainScene, chamberlain: Chamberlain, *, seconds: int) -> None:
    """Run rounds for this long."""
    end = scene.now + timedelta(seconds=seconds)
    while scene.now < end:
        await chamberlain.run_round()
        scene.forward(seconds=10)
    await chamberlain.run_round()


async def test_the_health_is_stored_as_the_king_reads_it(scene: ChamberlainScene) -> None:
    scene.sensor.used = {CPU: 72.0, MEMORY: 20.0, DISK: 30.0}
    await scene.chamberlain().measure()
    health = await scene.document("health", "current")
    assert (health["level"], health["reason"], health["at"]) == ("yellow", "cpu_percent: 72", "2026-02-07T01:00:00Z")
    assert health["metrics"] == scene.sensor.used
    assert health_rule(health, scene.now, KingSettings()).level is AdmissionLevel.EVERYTHING
    assert (
        slot_limit(health, KingSettings()).text == "the machine is busy (CPU pressure 72 %), so at most 2 runs at once"
    )
    scene.sensor.used = {CPU: 72.0, MEMORY: 83.0, DISK: 30.0}
    await scene.chamberlain().measure()
    rule = health_rule(await scene.document("health", "current"), scene.now, KingSettings())
    assert (rule.level, rule.reason) == (AdmissionLevel.NOTHING, "the machine is short of memory (83 % used)")


async def test_each_change_of_the_health_is_logged_and_busy_processors_cause_no_alert(scene: ChamberlainScene) -> None:
    chamberlain = scene.chamberlain()
    for used in (10.0, 72.0, 73.0, 92.0, 30.0):
        scene.sensor.used = {CPU: used}
        await chamberlain.measure()
        scene.forward(seconds=30)
    assert await scene.logged("system.health_changed") == [
        {"from": "green", "to": "yellow", "reason": "cpu_percent: 72"},
        {"from": "yellow", "to": "red", "reason": "cpu_percent: 92"},
        {"from": "red", "to": "green", "reason": "cpu_percent: 30"},
    ]
    assert await scene.logged("system.resource_warning") == [
        {"metric": CPU, "value": 72.0, "threshold": 60.0},
        {"metric": CPU, "value": 92.0, "threshold": 90.0},
    ]
    assert await scene.messages() == []


async def test_people_are_alerted_once_when_no_new_work_starts_because_of_memory(scene: ChamberlainScene) -> None:
    chamberlain = scene.chamberlain()
    for memory in (20.0, 93.0, 95.0):
        scene.sensor.used = {CPU: 99.0, MEMORY: memory}
        await chamberlain.measure()
        scene.forward(seconds=30)
    (message,) = await scene.messages()
    assert (message.urgency, message.content) == ("urgent", "Health is red (memory_percent: 93): no new work starts.")


async def test_the_machine_with_the_worst_reading_decides_the_health_level(scene: ChamberlainScene) -> None:
    there = FakeSensor("there")
    there.used = {CPU: 85.0}
    await scene.chamberlain(sensor=there).measure()
    await scene.chamberlain().measure()
    assert (await scene.document("health", "current"))["level"] == "orange"


async def test_every_reading_writes_a_line_of_metrics_with_the_spending_after_the_first_round(
    scene: ChamberlainScene,
) -> None:
    await scene.put(money("12.5", "2026-02-07"))
    chamberlain = scene.chamberlain()
    await chamberlain.measure()
    await chamberlain.run_round()
    await chamberlain.measure()
    used = (
        "2026-02-07T01:00:00.000Z info chamberlain: metrics level=green cpu_percent=10 memory_percent=20"
        " disk_percent=30"
    )
    lines = (scene.directory / "logs" / "metrics.log").read_text().splitlines()
    assert lines == [used, f"{used} budget=ok spent_usd=12.50"]


async def test_this_machine_can_be_measured(tmp_path: Path) -> None:
    used = await MachineSensor(tmp_path / "not" / "there").read()
    assert set(used) == {CPU, MEMORY, DISK}
    assert all(0 <= value <= 100 for value in used.values())
    assert used[MEMORY] > 0


@pytest.mark.both_stores
async def test_a_new_day_is_begun_once_by_several_chamberlains(
    scene: ChamberlainScene, backend: BackendUnderTest
) -> None:
    await scene.put(money("285.60", "2026-02-07"))
    scene.now = MIDNIGHT - timedelta(seconds=1)
    async with backend.open(scene.bus.topology, EVERY_KIND) as other:
        chamberlains = [scene.chamberlain(), scene.chamberlain(other)]
        await asyncio.gather(*(each.run_round() for each in chamberlains))
        assert (await scene.event_counts())["system.token_budget_reset"] == 0
        scene.now = MIDNIGHT
        for _ in range(3):
            await asyncio.gather(*(each.run_round() for each in chamberlains))
            scene.forward(seconds=30)
    assert await scene.logged("system.token_budget_reset") == [{"date": "2026-02-08", "previous_cost": "285.60"}]
    assert await scene.logged("system.token_status_changed") == [
        {"from": "ok", "to": "critical", "daily_cost_usd": "285.60"},
        {"from": "critical", "to": "ok", "daily_cost_usd": "0.00"},
    ]
    assert (await scene.document("quota", MONEY))["period"] == "2026-02-08"
    assert [message.content[:7] for message in await scene.messages()] == ["$285.60"]


@pytest.mark.both_stores
async def test_the_report_is_sent_at_nine_once_by_several_chamberlains(
    scene: ChamberlainScene, backend: BackendUnderTest
) -> None:
    await scene.log(created(START), spawned(START), completed(START, seconds=90), created(MIDNIGHT))
    scene.now = MIDNIGHT + timedelta(hours=9, seconds=-1)
    async with backend.open(scene.bus.topology, EVERY_KIND) as other:
        chamberlains = [scene.chamberlain(), scene.chamberlain(other)]
        await asyncio.gather(*(each.run_round() for each in chamberlains))
        assert await scene.messages() == []
        for _ in range(3):
            scene.forward(seconds=1)
            await asyncio.gather(*(each.run_round() for each in chamberlains))
    (message,) = await scene.messages()
    assert (message.type, message.content.splitlines()[0]) == ("report", "Daily report for 2026-02-07")
    assert message.context == {
        "type": "daily_report",
        "date": "2026-02-07",
        "tasks": {"created": 1, "completed": 1, "failed": 0, "needs_human": 0},
        "soldiers": {"spawned": 1, "timeout": 0},
        "avg_duration_seconds": {"gen-pr": 90},
    }


async def test_missed_reports_are_sent_when_a_chamberlain_runs_again(scene: ChamberlainScene) -> None:
    await scene.log(created(START), created(MIDNIGHT + timedelta(hours=1)))
    scene.now = MIDNIGHT + timedelta(days=2, hours=10)
    await scene.chamberlain().run_round()
    messages = await scene.messages()
    assert [message.context["date"] for message in messages] == ["2026-02-07", "2026-02-08", "2026-02-09"]
    assert [message.context["tasks"]["created"] for message in messages] == [1, 1, 0]
    assert messages[0].id.startswith("msg-20260210-")


@pytest.mark.both_stores
async def test_a_silent_role_is_logged_once_per_outage(scene: ChamberlainScene) -> None:
    signs = RecordHeartbeatWriter(scene.bus, "king")
    await signs.beat(scene.now)
    chamberlain = scene.chamberlain()
    scene.forward(seconds=120)
    await chamberlain.run_round()
    assert await scene.logged("system.heartbeat_missed") == []
    scene.forward(seconds=1)
    await asyncio.gather(chamberlain.run_round(), scene.chamberlain().run_round())
    scene.forward(seconds=30)
    await chamberlain.run_round()
    assert await scene.logged("system.heartbeat_missed") == [
        {"target": "king", "last_seen": "2026-02-07T01:00:00Z", "threshold_seconds": 120}
    ]
    await signs.beat(scene.now)
    await make_rounds(scene, chamberlain, seconds=130)
    assert (await scene.event_counts())["system.heartbeat_missed"] == 2


async def test_a_silent_role_with_heartbeats_in_files_is_logged_too(scene: ChamberlainScene) -> None:
    await FileHeartbeatWriter(scene.directory, "envoy").beat(scene.now)
    await make_rounds(scene, scene.chamberlain(), seconds=150)
    assert (await scene.event_counts())["system.heartbeat_missed"] == 1


async def test_people_are_notified_of_a_silent_king_with_waiting_events(scene: ChamberlainScene) -> None:
    await scene.put(event("evt-github-1"))
    await scene.log(detected(START, "evt-github-1"))
    scene.forward(minutes=31)
    await make_rounds(scene, scene.chamberlain(), seconds=150)
    (message,) = await scene.messages()
    assert "The King has no heartbeat: start it with `kingdom up` or `kingdom role king`." in message.content


async def test_people_are_notified_of_a_healthy_king_with_waiting_events(scene: ChamberlainScene) -> None:
    await scene.put(event("evt-github-1"))
    await scene.log(detected(START, "evt-github-1"))
    scene.forward(minutes=31)
    await FileHeartbeatWriter(scene.directory, "king").beat(scene.now)
    await scene.chamberlain().run_round()
    (message,) = await scene.messages()
    assert "The King runs" in message.content


async def test_a_failing_job_does_not_stop_the_others(scene: ChamberlainScene) -> None:
    scene.sensor.used = None
    await scene.put(Record(kind="chamberlain", id="outages", state="current", doc={"roles": "damaged"}))
    await scene.put(money("250", "2026-02-07"))
    await scene.log(completed(START))
    chamberlain = scene.chamberlain()
    await chamberlain.measure()
    await chamberlain.run_round()
    assert (await scene.event_counts())["system.token_status_changed"] == 1
    assert (await scene.document("statistics", "stats"))["days"]
    assert await scene.ids("health") == []


async def test_a_log_for_people_that_is_too_large_is_rotated(scene: ChamberlainScene) -> None:
    settings = ChamberlainSettings(retention=RetentionSettings(log_max_mb=1))
    logs = scene.directory / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "tasks.log").write_bytes(b"x" * (1 << 20))
    (logs / "system.log").write_bytes(b"x" * ((3 << 20) // 2))
    await scene.chamberlain(settings=settings).run_round()
    assert await scene.logged("recovery.log_rotated") == [{"file": "logs/system.log", "size_mb": 1.5}]
    assert ((logs / "tasks.log").exists(), (logs / "system.log.old").exists()) == (True, True)


async def test_a_thread_that_the_envoy_keeps_for_longer_than_a_week_is_logged_as_a_warning(
    scene: ChamberlainScene,
) -> None:
    threads = {
        "task-old": {"channel": "C1", "thread_ts": "1.0", "created_at": "2026-01-31T00:59:59Z"},
        "task-new": {"channel": "C1", "thread_ts": "2.0", "created_at": "2026-01-31T01:00:00Z"},
    }
    await scene.put(Record(kind="envoy", id="thread-mappings", state="current", doc=threads))
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        with capture_logs() as logs:
            await scene.chamberlain().run_round()
    finally:
        structlog.configure(**before)
    assert [(each["log_level"], each["assignment"], each["days"]) for each in logs] == [("warning", "task-old", 7)]


async def test_the_cleanup_runs_once_a_day_from_three_on(scene: ChamberlainScene) -> None:
    old = scene.directory / "state" / "prompts" / "task-1.md"
    old.parent.mkdir(parents=True)
    chamberlain = scene.chamberlain()
    counts = []
    for now in (
        MIDNIGHT,
        MIDNIGHT + timedelta(hours=3, seconds=-1),
        MIDNIGHT + timedelta(hours=3),
        MIDNIGHT + timedelta(hours=4),
    ):
        scene.now = now
        old.write_text("prompt")
        os.utime(old, (START.timestamp() - 10 * 86_400,) * 2)
        await chamberlain.run_round()
        counts.append((await scene.event_counts())["recovery.files_cleaned"])
    assert counts == [1, 1, 2, 2]
    assert [each["deleted_count"] for each in await scene.logged("recovery.files_cleaned")] == [1, 1]


async def test_the_chamberlain_measures_and_runs_rounds_until_it_is_stopped(scene: ChamberlainScene) -> None:
    done: list[object] = []

    class Counting(FakeSensor):
        async def read(self) -> dict[str, float]:
            done.append("read")
            return await super().read()

    every = 0.05
    chamberlain = scene.chamberlain(settings=ChamberlainSettings(every_seconds=every), sensor=Counting())
    pause = chamberlain._pause

    async def noted_pause(seconds: float) -> None:
        task = asyncio.current_task()
        if task and task.get_name() == "kingdom-chamberlain-health":
            done.append(seconds)
        await pause(seconds)

    chamberlain._pause = noted_pause  # type: ignore[method-assign]
    running = asyncio.create_task(chamberlain.run())
    metrics = scene.directory / "logs" / "metrics.log"

    async def knows_the_money() -> None:
        while done.count("read") < 4 or "budget=ok" not in metrics.read_text():
            scene.forward(seconds=30)
            await asyncio.sleep(0.02)

    await asyncio.wait_for(knows_the_money(), PATIENCE_SECONDS)
    chamberlain.stop()
    await asyncio.wait_for(running, PATIENCE_SECONDS)
    # A full pause follows each reading.
    assert done[:6] == ["read", every] * 3


async def test_a_hanging_job_is_abandoned_when_the_chamberlain_must_end_at_once(scene: ChamberlainScene) -> None:
    class Hanging:
        asked = asyncio.Event()

        async def log_end(self) -> None:
            self.asked.set()
            await asyncio.sleep(600)

    scene.operations = cast("Operations", log := Hanging())
    chamberlain = scene.chamberlain()
    running = asyncio.create_task(chamberlain.run())
    await asyncio.wait_for(log.asked.wait(), PATIENCE_SECONDS)
    await chamberlain.measure()
    chamberlain.stop()
    chamberlain.stop(at_once=True)
    await asyncio.wait_for(running, PATIENCE_SECONDS)


async def test_no_role_is_logged_as_silent_after_the_machine_was_suspended(scene: ChamberlainScene) -> None:
    signs = RecordHeartbeatWriter(scene.bus, "king")
    chamberlain = scene.chamberlain()
    await signs.beat(scene.now)
    await chamberlain.run_round()
    scene.forward(hours=8)
    await chamberlain.run_round()
    scene.forward(seconds=30)
    await signs.beat(scene.now)
    await make_rounds(scene, chamberlain, seconds=110)
    assert await scene.event_counts() == {}
