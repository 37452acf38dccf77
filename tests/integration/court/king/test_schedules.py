"""Schedules through the real bus: one event for each time, straight to its General."""

from datetime import UTC, datetime

from kingdom.court.king.schedules import SCHEDULES
from tests.contract.backends import BackendUnderTest
from tests.integration.court.king.scene import Scene, opened
from tests.unit.court.king.making import every, make_package, wants


async def fired(scene: Scene) -> list[str]:
    return [record.id.removeprefix("evt-schedule-nightly-") for record in await scene.find("event")]


async def test_a_schedule_fires_for_its_general_alone_and_completes_like_any_event(backend: BackendUnderTest) -> None:
    nightly = every("30 21 * * *", repo="acme/app", payload={"days": 1})
    greedy = make_package("gen-greedy", wants("*"), order=1)
    async with opened(backend, greedy, make_package("gen-report", schedules=[nightly])) as scene:
        await scene.tick()
        assert await fired(scene) == []
        # 12:01 in UTC is 21:01 in Seoul.
        scene.clock.forward(minutes=30)
        await scene.tick()
        await scene.tick()
        (assignment,) = await scene.assigned()
        event = await scene.event("evt-schedule-nightly-20261115123000")
        assert (event.type, event.source, event.priority) == ("report.daily", "schedule", "low")
        assert [(route.general, route.rule) for route in event.routes] == [("gen-report", "schedule")]
        assert (assignment.event_id, assignment.cause) == ("schedule-nightly", event.id)
        assert (assignment.target_general, assignment.type, assignment.payload) == (
            "gen-report",
            "report.daily",
            {"days": 1},
        )
        (sent,) = [record for record in await scene.find("sequence") if record.id == "schedule-sent"]
        assert sent.doc == {"nightly": "2026-11-15T12:30:00+00:00"}
        await scene.complete(assignment.id)
        assert (await scene.event(event.id)).status == "completed"


async def test_a_schedule_with_an_invalid_record_starts_over_and_does_not_stop_others(
    backend: BackendUnderTest,
) -> None:
    schedules = [every("30 21 * * *", name) for name in ("first", "second")]
    async with opened(backend, make_package("gen-report", schedules=schedules)) as scene:
        await scene.tick()
        async with scene.bus.transaction() as transaction:
            record = await transaction.get(SCHEDULES.name, "first")
            assert record
            await transaction.put(record.replace(doc={**record.doc, "next_run_at": "at noon"}))
        scene.clock.forward(minutes=30)
        await scene.tick()
        assert [record.id for record in await scene.find("event")] == ["evt-schedule-second-20261115123000"]
        scene.clock.forward(days=1)
        await scene.tick()
        assert len(await scene.find("event")) == 3


async def test_a_time_in_the_hour_that_daylight_saving_repeats_fires_once(backend: BackendUnderTest) -> None:
    nightly = every("30 1 * * *", time_zone="America/New_York")
    async with opened(backend, make_package("gen-report", schedules=[nightly])) as scene:
        scene.clock.now = datetime(2026, 11, 1, 4, tzinfo=UTC)
        for _ in range(20):
            await scene.tick()
            scene.clock.forward(minutes=15)
        assert await fired(scene) == ["20261101053000"]


async def test_a_time_in_the_hour_that_daylight_saving_skips_fires_once(backend: BackendUnderTest) -> None:
    nightly = every("30 2 * * *", time_zone="America/New_York")
    async with opened(backend, make_package("gen-report", schedules=[nightly])) as scene:
        scene.clock.now = datetime(2026, 3, 8, 5, tzinfo=UTC)
        for _ in range(20):
            await scene.tick()
            scene.clock.forward(minutes=15)
        assert await fired(scene) == ["20260308070000"]


async def test_missed_times_are_caught_up_as_the_schedule_says(backend: BackendUnderTest) -> None:
    for catch_up, times in (("none", []), ("once", ["14"]), ("all", ["13", "14"])):
        name = f"hourly-{catch_up}"
        hourly = every("0 * * * *", name, catch_up=catch_up)
        async with opened(backend, make_package("gen-report", schedules=[hourly])) as scene:
            await scene.tick()
            scene.clock.forward(hours=2, minutes=20)
            await scene.tick()
            found = [record.id for record in await scene.find("event") if name in record.id]
            assert found == [f"evt-schedule-{name}-20261115{hour}0000" for hour in times]
            scene.clock.forward(minutes=40)
            await scene.tick()
            assert (await scene.event(f"evt-schedule-{name}-20261115150000")).source == "schedule"


async def test_a_schedule_that_was_missing_for_a_day_starts_over(backend: BackendUnderTest) -> None:
    package = make_package("gen-report", schedules=[every("0 * * * *")])
    async with opened(backend, package) as scene:
        await scene.tick()
        scene.packages.remove(package)
        await scene.tick()
        assert [record.state for record in await scene.find(SCHEDULES.name)] == ["stopped"]
        scene.clock.forward(hours=24)
        scene.packages.append(package)
        await scene.tick()
        assert await fired(scene) == []
        scene.clock.forward(hours=1)
        await scene.tick()
        assert await fired(scene) == ["20261116130000"]


async def test_a_schedule_that_was_missing_for_less_than_a_day_catches_up(
    backend: BackendUnderTest,
) -> None:
    package = make_package("gen-report", schedules=[every("0 * * * *")])
    async with opened(backend, package) as scene:
        await scene.tick()
        scene.packages.remove(package)
        await scene.tick()
        scene.clock.forward(hours=3)
        scene.packages.append(package)
        await scene.tick()
        assert await fired(scene) == ["20261115150000"]
        assert [record.state for record in await scene.find(SCHEDULES.name)] == ["active"]


async def test_a_schedule_whose_times_are_changed_fires_only_at_the_new_times(backend: BackendUnderTest) -> None:
    async with opened(backend, make_package("gen-report", schedules=[every("0 * * * *")])) as scene:
        await scene.tick()
        scene.packages[:] = [make_package("gen-report", schedules=[every("45 * * * *")])]
        scene.clock.forward(minutes=59, seconds=30)
        await scene.tick()
        assert await fired(scene) == []
        scene.clock.forward(minutes=45)
        await scene.tick()
        assert await fired(scene) == ["20261115134500"]
