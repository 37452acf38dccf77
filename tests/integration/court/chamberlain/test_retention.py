"""Every row of the retention table: the item exists just before its time limit, and is gone just after.

Files expire by the clock that the test moves, so each is checked a second before and after its limit. Records and dedup
keys expire by the clock of their store, so the test makes them older. An item that must stay has one minute left, in
which the test must end.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from kingdom.bus import Bus, LogCursor, LogEntry, Record, Transaction
from kingdom.court.chamberlain.retention import clean_up, keep_retention, with_retention
from kingdom.court.chamberlain.settings import RetentionSettings
from kingdom.court.documents import AssignmentStatus, EventStatus
from kingdom.court.followups.records import end_followup, save_followup
from kingdom.court.records import SEEN, SEEN_KEPT
from kingdom.court.sessions import SoldierSession, add_session
from kingdom.court.streams import TOPOLOGY
from kingdom.workflow.model.status import AgentStatus
from tests.contract.backends import BackendUnderTest
from tests.integration.court.chamberlain.aging import age_key, age_record
from tests.integration.court.chamberlain.scene import (
    EVERY_KIND,
    START,
    ChamberlainScene,
    assignment,
    event,
    opened,
    run,
)
from tests.integration.running import eventually
from tests.unit.court.followups.test_rules import FOLLOWUP

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
SETTINGS = RetentionSettings()
DONE = AssignmentStatus.COMPLETED


def message(record_id: str, state: str) -> Record:
    return Record(kind="message", id=record_id, state=state, doc={"id": record_id, "status": state})


def bill(record_id: str) -> Record:
    return Record(kind="bill", id=record_id, state="ended", doc={"task_id": record_id, "usd": "1.25", "models": {}})


def result(record_id: str) -> Record:
    return Record(kind="result", id=record_id, state="ended", doc={"task_id": record_id, "status": "success"})


def past_result(record_id: str) -> Record:
    return Record(
        kind="past-result", id=record_id, state="ACTIVE", indexed={"repo": "repo-1"}, doc={"task_id": record_id}
    )


RECORDS = [
    pytest.param(lambda name: event(f"evt-github-{name}", EventStatus.COMPLETED), 7, id="events completed"),
    pytest.param(lambda name: event(f"evt-github-{name}", EventStatus.FAILED), 7, id="events failed"),
    pytest.param(lambda name: assignment(f"task-{name}", AssignmentStatus.COMPLETED), 7, id="tasks completed"),
    pytest.param(lambda name: assignment(f"task-{name}", AssignmentStatus.FAILED), 7, id="tasks failed"),
    pytest.param(lambda name: assignment(f"task-{name}", AssignmentStatus.SKIPPED), 7, id="tasks skipped"),
    pytest.param(lambda name: message(f"msg-{name}", "sent"), 7, id="messages sent"),
    pytest.param(lambda name: bill(f"task-{name}"), 7, id="bills"),
    pytest.param(lambda name: result(f"task-{name}"), 7, id="results"),
    pytest.param(lambda name: result(f"task-{name}-raw"), 7, id="raw results"),
    pytest.param(lambda name: past_result(f"1-task-{name}"), 7, id="results for later runs"),
]
# An item that has not ended stays, however old it is.
OPEN = [
    event("evt-github-1", EventStatus.PENDING),
    event("evt-github-2", EventStatus.DISPATCHED),
    assignment("task-1", AssignmentStatus.PENDING),
    assignment("task-2", AssignmentStatus.IN_PROGRESS),
    assignment("task-3", AssignmentStatus.NEEDS_HUMAN),
    message("msg-1", "pending"),
]
# The path of a file, and how long it stays.
FILES = [
    ("state/prompts/task-1.md", 3),
    ("state/results/task-1-soldier-id", 7),
    ("state/results/task-1-session-id", 7),
    ("logs/sessions/soldier-1-1.json", 7),
    ("logs/sessions/soldier-1-1.err", 7),
    ("soldiers/box/logs/sessions/soldier-1-1.json", 7),
    ("logs/system.log.old", 7),
    ("logs/tasks.log.old", 7),
    ("logs/metrics.log.old", 7),
]
OF_TASKS = [each for each in FILES if "task-1" in each[0]]
OF_SOLDIERS = [each for each in FILES if "soldier-1-1" in each[0]]
# Files that are rewritten regularly and belong to no single run.
PERMANENT_FILES = [
    "logs/system.log",
    "logs/tasks.log",
    "logs/metrics.log",
    "state/king/heartbeat",
    "workspace/gen-pr/CLAUDE.md",
    "workspace/gen-pr/.kingdom-task.json",
]


def write(directory: Path, name: str, written_at: datetime) -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("text\n")
    os.utime(path, (written_at.timestamp(),) * 2)
    return path


async def cleaned(scene: ChamberlainScene, now: datetime, settings: RetentionSettings = SETTINGS) -> int:
    return await clean_up(scene.bus, scene.operations, settings, scene.directory, now)


async def retained(backend: BackendUnderTest, directory: Path, settings: RetentionSettings = SETTINGS) -> None:
    async with backend.open(TOPOLOGY, with_retention(EVERY_KIND, settings)) as bus:
        await clean_up(bus, backend.operations(bus), settings, directory, datetime.now(UTC))


async def store(bus: Bus, *stored: Record) -> None:
    async with bus.transaction() as transaction:
        for each in stored:
            await transaction.put(each)


@pytest.mark.both_stores
@pytest.mark.parametrize(("make", "days"), RECORDS)
async def test_a_record_that_has_ended_stays_for_its_days(
    backend: BackendUnderTest, directory: Path, make: Callable[[str], Record], days: int
) -> None:
    young, old = make("young"), make("old")
    async with opened(backend, directory) as scene:
        await store(scene.bus, young, old)
    age_record(backend, young.kind, young.id, days * DAY - MINUTE)
    age_record(backend, old.kind, old.id, days * DAY + SECOND)
    await retained(backend, directory)
    async with opened(backend, directory) as scene:
        assert await scene.ids(young.kind) == [young.id]


@pytest.mark.both_stores
async def test_the_retention_of_the_general_role_logs_how_many_records_it_removed(
    backend: BackendUnderTest, directory: Path
) -> None:
    old = [event(f"evt-github-{number}", EventStatus.COMPLETED) for number in (1, 2, 3)]
    async with opened(backend, directory) as scene:
        await store(scene.bus, *old)
    for each in old[:2]:
        age_record(backend, each.kind, each.id, 7 * DAY + SECOND)
    async with backend.open(TOPOLOGY, with_retention(EVERY_KIND, SETTINGS)) as bus:
        operations = backend.operations(bus)
        often = timedelta(milliseconds=20)
        upkeep = asyncio.create_task(keep_retention(bus, operations, SETTINGS, "general", every=often))

        async def counted() -> list[LogEntry]:
            page = await operations.read_log(LogCursor(), 1000)
            return [each.entry for each in page if each.entry.type == "recovery.files_cleaned"]

        async def is_counted() -> bool:
            return bool(await counted())

        try:
            await eventually(is_counted)
        finally:
            upkeep.cancel()
            await asyncio.wait({upkeep})
        assert [(each.actor, each.data) for each in await counted()] == [("general", {"deleted_count": 2})]


async def test_the_settings_say_how_long_records_stay(backend: BackendUnderTest, directory: Path) -> None:
    settings = RetentionSettings(queue_days=2, results_days=1)
    made = [(event("evt-github-1", EventStatus.COMPLETED), 2), (result("task-1"), 1), (message("msg-1", "sent"), 2)]
    made += [(past_result("1-task-1"), 1), (assignment("task-2", DONE), 2), (bill("task-3"), 2)]
    async with opened(backend, directory) as scene:
        await store(scene.bus, *(record for record, _ in made))
    for record, days in made:
        age_record(backend, record.kind, record.id, days * DAY - MINUTE)
    await retained(backend, directory, settings)
    async with opened(backend, directory) as scene:
        assert [await scene.ids(record.kind) for record, _ in made] == [[record.id] for record, _ in made]
    for record, days in made:
        age_record(backend, record.kind, record.id, days * DAY + SECOND)
    await retained(backend, directory, settings)
    async with opened(backend, directory) as scene:
        assert [await scene.ids(record.kind) for record, _ in made] == [[]] * len(made)


@pytest.mark.both_stores
async def test_open_records_stay(backend: BackendUnderTest, directory: Path) -> None:
    async with opened(backend, directory) as scene:
        await store(scene.bus, *OPEN)
    await retained(backend, directory, RetentionSettings(queue_days=1e-9, results_days=1e-9))
    async with opened(backend, directory) as scene:
        found = {each for kind in ("event", "task", "message") for each in await scene.ids(kind)}
        assert found == {record.id for record in OPEN}


@pytest.mark.both_stores
async def test_a_seen_event_is_recognized_for_thirty_days(backend: BackendUnderTest, directory: Path) -> None:
    async with opened(backend, directory) as scene, scene.bus.transaction() as transaction:
        for key in ("evt-github-young", "evt-github-old"):
            assert await transaction.once(SEEN, key, SEEN_KEPT)
    age_key(backend, SEEN, "evt-github-young", 30 * DAY - MINUTE)
    age_key(backend, SEEN, "evt-github-old", 30 * DAY + SECOND)
    await retained(backend, directory)
    async with opened(backend, directory) as scene:
        async with scene.bus.transaction() as transaction:
            assert not await transaction.once(SEEN, "evt-github-young", SEEN_KEPT)
        if backend.name == "files":
            seen = directory / "state" / "sentinel" / "seen"
            assert [path.name for path in seen.iterdir()] == ["evt-github-young"]
        async with scene.bus.transaction() as transaction:
            assert await transaction.once(SEEN, "evt-github-old", SEEN_KEPT)


async def test_a_day_of_the_log_stays_for_seven_days_after_it(backend: BackendUnderTest, directory: Path) -> None:
    if backend.name != "files":
        pytest.skip("the log of a database has partitions, whose age is tested with them")
    while True:
        today = datetime.now(UTC).date()
        for days in (7, 8):
            write(directory, f"logs/events-{today - days * DAY:%Y%m%d}.log", datetime.now(UTC))
        await retained(backend, directory)
        # Midnight may have passed in the meantime.
        if today == datetime.now(UTC).date():
            break
    left = [path.name for path in (directory / "logs").glob("events-*.log")]
    assert left == [f"events-{today - 7 * DAY:%Y%m%d}.log"]


class ReplacingBus:
    """A bus during whose transactions a folder replaces a file. Nothing can remove it as a file, not even root."""

    def __init__(self, bus: Bus, path: Path) -> None:
        self._bus = bus
        self._path = path

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        times = (self._path.stat().st_mtime,) * 2
        self._path.unlink()
        self._path.mkdir()
        os.utime(self._path, times)
        return self._bus.transaction()


async def test_a_file_that_cannot_be_removed_does_not_stop_the_cleanup(scene: ChamberlainScene) -> None:
    stuck, later = [
        write(scene.directory, f"state/prompts/task-20260101-00{number}.md", START - 999 * DAY) for number in (1, 2)
    ]
    bus = cast("Bus", ReplacingBus(scene.bus, stuck))
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        with capture_logs() as logs:
            assert await clean_up(bus, scene.operations, SETTINGS, scene.directory, START) == 1
    finally:
        structlog.configure(**before)
    assert (stuck.exists(), later.exists()) == (True, False)
    [entry] = logs
    assert (entry["log_level"], entry["path"], bool(entry["error"])) == ("warning", str(stuck), True)
    assert await cleaned(scene, START) == 0


@pytest.mark.parametrize(("name", "days"), FILES)
async def test_a_file_stays_for_its_days(scene: ChamberlainScene, name: str, days: int) -> None:
    path = write(scene.directory, name, START)
    assert (await cleaned(scene, START + days * DAY), path.exists()) == (0, True)
    assert (await cleaned(scene, START + days * DAY + SECOND), path.exists()) == (1, False)


@pytest.mark.parametrize(("name", "days"), OF_TASKS)
async def test_the_retention_of_a_file_begins_with_the_end_of_its_assignment(
    scene: ChamberlainScene, name: str, days: int
) -> None:
    path = write(scene.directory, name, START - 20 * DAY)
    await scene.put(assignment("task-1", DONE, ended_at=START))
    assert (await cleaned(scene, START + days * DAY), path.exists()) == (0, True)
    assert (await cleaned(scene, START + days * DAY + SECOND), path.exists()) == (1, False)


@pytest.mark.parametrize(("name", "days"), OF_TASKS)
async def test_an_assignment_that_waits_for_a_person_keeps_its_files(
    scene: ChamberlainScene, name: str, days: int
) -> None:
    path = write(scene.directory, name, START)
    await scene.put(assignment("task-1", AssignmentStatus.NEEDS_HUMAN))
    assert (await cleaned(scene, START + 10 * days * DAY), path.exists()) == (0, True)


@pytest.mark.parametrize(("name", "days"), OF_SOLDIERS)
async def test_a_registered_session_keeps_its_files(scene: ChamberlainScene, name: str, days: int) -> None:
    path = write(scene.directory, name, START)
    async with scene.bus.transaction() as transaction:
        session = SoldierSession(assignment_id="task-1", general="gen-pr", host="box", started_at=START)
        await add_session(transaction, "soldier-1-1", session)
    assert (await cleaned(scene, START + 10 * days * DAY), path.exists()) == (0, True)


async def test_a_session_that_a_run_may_continue_keeps_its_files(scene: ChamberlainScene) -> None:
    path = write(scene.directory, "logs/sessions/soldier-1-1.json", START)
    for state, stays in (("AWAITING", True), ("COMPLETED", False)):
        await scene.put(run("wf-task-1", state, "soldier-1-1", AgentStatus.STOPPED))
        await cleaned(scene, START + 30 * DAY)
        assert path.exists() is stays


async def test_the_session_of_a_followed_pull_request_keeps_its_files_until_days_after_the_followup(
    scene: ChamberlainScene,
) -> None:
    path = write(scene.directory, "logs/sessions/soldier-1-1.json", START)
    await scene.put(run("wf-task-1", "COMPLETED", "soldier-1-1", AgentStatus.STOPPED))
    followup = msgspec.structs.replace(FOLLOWUP, runs=("wf-task-1", "wf-task-of-a-deleted-run"))
    async with scene.bus.transaction() as transaction:
        record = await save_followup(transaction, followup, None)
    assert (await cleaned(scene, START + 30 * DAY), path.exists()) == (0, True)
    ended = START + 10 * DAY
    async with scene.bus.transaction() as transaction:
        await end_followup(transaction, record, followup, "it was merged", at=ended, actor="sentinel")
    assert (await cleaned(scene, ended + 7 * DAY), path.exists()) == (0, True)
    assert (await cleaned(scene, ended + 7 * DAY + SECOND), path.exists()) == (1, False)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("state/prompts/task-1.md", "prompts_days"),
        ("state/results/task-1-soldier-id", "results_days"),
        ("logs/sessions/soldier-1-1.err", "session_logs_days"),
        ("logs/tasks.log.old", "logs_days"),
    ],
)
async def test_the_settings_say_how_long_files_stay(scene: ChamberlainScene, name: str, setting: str) -> None:
    settings = msgspec.structs.replace(SETTINGS, **{setting: 20})
    path = write(scene.directory, name, START)
    assert (await cleaned(scene, START + 20 * DAY, settings), path.exists()) == (0, True)
    assert (await cleaned(scene, START + 20 * DAY + SECOND, settings), path.exists()) == (1, False)


async def test_files_without_a_retention_stay(scene: ChamberlainScene) -> None:
    paths = [write(scene.directory, name, START) for name in PERMANENT_FILES]
    assert await cleaned(scene, START + 1000 * DAY) == 0
    assert all(path.exists() for path in paths)


def test_a_retention_setting_changes_only_its_own_kinds() -> None:
    named = {"event", "task", "message", "bill", "result", "past-result"}
    for before, after in zip(EVERY_KIND, with_retention(EVERY_KIND, RetentionSettings(queue_days=1)), strict=True):
        assert replace(after, retention=before.retention) == before
        assert (after is before) == (before.name not in named)
