"""Reading the log of a real store: nothing counts twice, and nothing is missed."""

import asyncio
import os
from datetime import timedelta

import pytest

from kingdom.bus import LogEntry
from kingdom.court.chamberlain.log_reader import LogReading, read_new_entries
from kingdom.court.chamberlain.settings import ChamberlainSettings
from kingdom.court.documents import EventStatus
from tests.contract.backends import BackendUnderTest
from tests.integration.court.chamberlain.scene import EVERY_KIND, SEOUL, START, ChamberlainScene, event
from tests.unit.court.chamberlain.entries import completed, detected, failed, timed_out

SETTINGS = ChamberlainSettings()


async def read(scene: ChamberlainScene, king_silent: timedelta | None = None) -> LogReading:
    return await read_new_entries(scene.bus, scene.operations, SETTINGS, SEOUL, scene.now, king_silent)


async def completions(scene: ChamberlainScene) -> int:
    days = (await scene.document("statistics", "stats"))["days"]
    return sum(sum(day["counts"].get("task.completed", {}).values()) for day in days.values())


async def test_new_log_entries_are_counted_once(scene: ChamberlainScene) -> None:
    await scene.log(completed(START), completed(START), LogEntry(type="WorkStarted", actor="engine"))
    await read(scene)
    assert await completions(scene) == 2
    await read(scene)
    await scene.log(completed(START))
    await read(scene)
    assert await completions(scene) == 3


async def test_a_log_of_several_pages_is_read_to_its_end(scene: ChamberlainScene) -> None:
    await scene.log(*(completed(START) for _ in range(2500)))
    await read(scene)
    assert await completions(scene) == 2500


@pytest.mark.both_stores
async def test_several_chamberlains_count_everything_once(scene: ChamberlainScene) -> None:
    for _ in range(5):
        await scene.log(*(completed(START) for _ in range(20)))
        await asyncio.gather(*(read(scene) for _ in range(3)))
    assert await completions(scene) == 100


async def test_the_statistics_are_in_the_documented_file(scene: ChamberlainScene, backend: BackendUnderTest) -> None:
    if backend.name != "files":
        pytest.skip("only a store of files has a file")
    await scene.log(completed(START))
    await read(scene)
    assert '"task.completed"' in (scene.directory / "logs" / "analysis" / "stats.json").read_text()


async def test_a_log_that_was_split_at_midnight_is_read_as_one(
    scene: ChamberlainScene, backend: BackendUnderTest
) -> None:
    if backend.name != "files":
        pytest.skip("only a store of files splits its log")
    await scene.log(completed(START))
    log = scene.directory / "logs" / "events.log"
    os.utime(log, (log.stat().st_mtime - 86_400,) * 2)
    await scene.log(completed(START))
    assert len(list(log.parent.glob("events-*.log"))) == 1
    await read(scene)
    assert await completions(scene) == 2


@pytest.mark.both_stores
async def test_people_are_notified_of_unusual_activity_once_even_by_several_chamberlains(
    scene: ChamberlainScene,
) -> None:
    await scene.log(*(failed(START, "gen-pr") for _ in range(3)))
    scene.forward(minutes=1)
    await asyncio.gather(*(read(scene) for _ in range(3)))
    scene.forward(minutes=1)
    await read(scene)
    (message,) = await scene.messages()
    assert (message.type, message.channel, message.content) == (
        "notification",
        "kingdom",
        "gen-pr failed 3 times in a row.",
    )


async def test_activity_seen_before_a_restart_counts_after_it(
    scene: ChamberlainScene, backend: BackendUnderTest
) -> None:
    await scene.log(failed(START), failed(START))
    scene.forward(minutes=1)
    await read(scene)
    async with backend.open(scene.bus.topology, EVERY_KIND) as bus:
        reborn = ChamberlainScene(bus, backend.operations(bus), scene.directory)
        reborn.now = scene.forward(minutes=9)
        await reborn.log(failed(reborn.now))
        reborn.forward(minutes=1)
        await read(reborn)
        assert len(await reborn.messages()) == 1


async def test_many_timeouts_keep_the_health_at_least_yellow_for_an_hour(scene: ChamberlainScene) -> None:
    await scene.log(*(timed_out(START + timedelta(minutes=number)) for number in range(5)))
    scene.forward(minutes=6)
    assert (await read(scene)).many_timeouts == "soldier.timeout: 5"
    scene.forward(minutes=50)
    assert (await read(scene)).many_timeouts == "soldier.timeout: 5"
    scene.forward(minutes=10)
    assert (await read(scene)).many_timeouts == ""


async def test_an_event_that_waits_for_half_an_hour_is_reported(scene: ChamberlainScene) -> None:
    await scene.put(event("evt-github-1"))
    await scene.log(detected(START, "evt-github-1"))
    scene.forward(minutes=29)
    assert (await read(scene)).alerts == ()
    scene.forward(minutes=1)
    (alert,) = (await read(scene, timedelta(seconds=300))).alerts
    assert "no heartbeat for 300 seconds" in alert.text
    assert [message.content for message in await scene.messages()] == [alert.text]


async def test_an_event_that_ended_without_being_dispatched_does_not_wait(scene: ChamberlainScene) -> None:
    await scene.put(event("evt-github-1", EventStatus.COMPLETED))
    await scene.log(detected(START, "evt-github-1"), detected(START, "evt-github-gone"))
    scene.forward(minutes=45)
    assert (await read(scene)).alerts == ()
    assert (await scene.document("statistics", "stats"))["watch"]["waiting"] == {}


async def test_the_log_of_a_moved_store_is_read_from_its_end(scene: ChamberlainScene) -> None:
    await scene.log(completed(START))
    await read(scene)
    record = await scene.document("statistics", "stats")
    async with scene.bus.transaction() as transaction:
        known = await transaction.get("statistics", "stats")
        assert known
        await transaction.put(
            type(known)(
                kind=known.kind,
                id=known.id,
                state=known.state,
                version=known.version,
                doc={**record, "cursor": "999999999999.5"},
            )
        )
    await read(scene)
    await scene.log(completed(START))
    await read(scene)
    assert await completions(scene) == 2


async def test_counts_leave_the_last_hour_even_if_nothing_new_is_logged(scene: ChamberlainScene) -> None:
    await scene.log(completed(START, "gen-pr"), completed(START + timedelta(minutes=20), "gen-pr"))

    async def last_hour(**later: float) -> object:
        scene.now = START + timedelta(**later)
        await read(scene)
        return (await scene.document("statistics", "stats"))["last_hour"]

    assert await last_hour(minutes=59) == {"task.completed": {"gen-pr": 2}}
    assert await last_hour(minutes=61) == {"task.completed": {"gen-pr": 1}}
    assert await last_hour(minutes=90) == {}
