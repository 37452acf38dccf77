"""The screen in difficult cases: much to show, little space, no colors, an unreachable store."""

import asyncio
from datetime import timedelta
from pathlib import Path

import msgspec
import psycopg
import pytest
from psycopg import sql

from kingdom.bootstrap import operations_of
from kingdom.bus import Bus, Dead, Envelope, Record
from kingdom.clock import utc_now
from kingdom.court.heartbeat import HEARTBEATS
from kingdom.court.questions import (
    QUESTIONS,
    HumanQuestion,
    QuestionStatus,
    find_pending_answer,
    load_question,
    save_question,
)
from kingdom.court.records import CURRENT
from kingdom.ids import first_id
from kingdom.realm import Realm
from kingdom.roles import declare_application
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import DELETED, WORKFLOWS
from tests.contract.backends import BACKENDS, BackendUnderTest
from tests.integration.top.scene import TopUser, opened_top
from tests.unit.workflow.model.scene import template

REALM = declare_application(Realm())


@pytest.fixture
def files(realm: Path) -> BackendUnderTest:
    return BACKENDS["files"](str(realm))


def a_run(number: int, status: WorkflowStatus, *, age: timedelta = timedelta()) -> Workflow:
    run = Workflow.copied_from(template(), f"wf-task-20990101-{number:05}", utc_now() - age, name=f"Run {number}")
    run.status = status
    return run


async def keep(bus: Bus, *runs: Workflow, state: str = "") -> None:
    """Store runs, and replace earlier versions of them."""
    async with bus.transaction() as transaction:
        for run in runs:
            before = await transaction.get(WORKFLOWS.name, run.id)
            version = before.version if before else 0
            record = Record(
                kind=WORKFLOWS.name, id=run.id, state=state or run.status, version=version, doc=run.document()
            )
            await transaction.put(record)


async def test_hundreds_of_runs_can_be_scrolled_and_filtered(files: BackendUnderTest, tmp_path: Path) -> None:
    async with files.open(REALM.topology, REALM.kinds) as bus:
        await keep(bus, *(a_run(number, WorkflowStatus.RUNNING) for number in range(299)))
        async with opened_top(files, tmp_path, size=(80, 24)) as anna:
            await anna.sees(" 1 runs 299 ")
            await anna.press("end")
            await anna.sees("Run 0 ")
            await anna.press("pageup", "slash", *"177")
            await anna.sees("1/299", "Run 177")
            assert len(anna.rows) == 1
            await anna.press("enter")
            await anna.is_back()
            await keep(bus, a_run(177, WorkflowStatus.PAUSED))
            await anna.sees("PAUSED")
            await anna.press("escape")
            await anna.sees("299", "Run 298")


async def test_the_cursor_stays_on_its_run_while_others_come_and_go(files: BackendUnderTest, tmp_path: Path) -> None:
    async with files.open(REALM.topology, REALM.kinds) as bus:
        await keep(bus, *(a_run(number, WorkflowStatus.RUNNING) for number in range(3)))
        async with opened_top(files, tmp_path) as anna:
            await anna.until(lambda: len(anna.rows) == 3)
            await anna.press("down")
            chosen = list(anna.rows)[1]
            await keep(bus, *(a_run(number, WorkflowStatus.RUNNING) for number in range(3, 50)))
            await anna.until(lambda: len(anna.rows) == 50)
            await anna.press("c")
            await anna.sees(f"Cancel {chosen}")
            await anna.leaves("n")
            await anna.press("l")
            await anna.sees(chosen, "No agent has started yet")
            await anna.leaves()
            await anna.press("d")
            await anna.sees(chosen, "there is no checkout")


async def test_recent_failures_are_shown_and_earlier_ends_and_unreadable_runs_are_not(
    files: BackendUnderTest, tmp_path: Path
) -> None:
    old = a_run(1, WorkflowStatus.FAILED)
    old.id = "wf-task-20200101-001"
    async with files.open(REALM.topology, REALM.kinds) as bus:
        await keep(bus, a_run(2, WorkflowStatus.COMPLETED), old, a_run(3, WorkflowStatus.FAILED))
        await keep(bus, a_run(4, WorkflowStatus.RUNNING), a_run(5, WorkflowStatus.RUNNING))
        await make_unreadable(bus)
        async with opened_top(files, tmp_path) as anna:
            await anna.until(lambda: {key[-1] for key in anna.rows} == {"3", "4", "5"})
            await keep(bus, a_run(4, WorkflowStatus.COMPLETED))
            await keep(bus, a_run(5, WorkflowStatus.COMPLETED), state=DELETED)
            await anna.until(lambda: {key[-1] for key in anna.rows} == {"3", "4"})
            await anna.sees("COMPLETED")
            await anna.press("4")
            await anna.sees("wf-x", "task-2", "unreadable", "missing required field")
            await anna.press("3")
            await anna.until(lambda: "task-1" in anna.rows)
            for key in ("c", "r", "l"):
                await anna.press(key)
                await anna.sees("cannot be read by this version")
                anna.app.clear_notifications()
                await anna.until(lambda: "cannot be read" not in anna.text)
            await anna.opens("d")
            await anna.sees("cannot be read by this version")


async def test_a_text_that_resembles_a_choice_is_sent_only_after_a_second_enter(
    files: BackendUnderTest, tmp_path: Path
) -> None:
    ask = msgspec.structs.replace(a_question(), choices=("yes", "no"))
    async with files.open(REALM.topology, REALM.kinds) as bus, opened_top(files, tmp_path) as anna:
        async with bus.transaction() as transaction:
            await save_question(transaction, ask)
        await anna.press("3")
        await anna.until(lambda: list(anna.rows) == [ask.id])
        await anna.opens("a")
        await anna.press(*"yse", "enter")
        await anna.sees("yse is none of the choices; did you mean yes?")
        async with bus.transaction() as transaction:
            assert await find_pending_answer(transaction, ask) is None
        await anna.leaves("enter")
        async with bus.transaction() as transaction:
            known = await load_question(transaction, ask.id)
            given = await find_pending_answer(transaction, known[1]) if known else None
        assert given
        assert given.doc["payload"]["text"] == "yse"


def a_question() -> HumanQuestion:
    """Return an open question of a run that does not exist."""
    return HumanQuestion(
        id="task-1",
        assignment_id="task-1",
        general="gen-x",
        workflow_id="wf-x",
        text="Which?",
        asked_at=utc_now(),
        due_at=utc_now() + timedelta(hours=1),
    )


async def make_unreadable(bus: Bus) -> None:
    """Store unreadable documents: a run with a question, a parked run, a question, and a heartbeat."""
    soon, ask = utc_now() + timedelta(hours=1), a_question()
    async with bus.transaction() as transaction:
        for run_id in ("wf-x", "wf-y"):
            state = WorkflowStatus.AWAITING
            await transaction.put(Record(kind=WORKFLOWS.name, id=run_id, state=state, due_at=soon, doc={"id": run_id}))
        await transaction.put(Record(kind=HEARTBEATS.name, id="future", state=CURRENT, doc={"of": "king"}))
        for ask_id, doc in ((ask.id, msgspec.to_builtins(ask)), ("task-2", {})):
            await transaction.put(Record(kind=QUESTIONS.name, id=ask_id, state=QuestionStatus.OPEN, doc=doc))


async def test_many_failed_runs_are_shown_as_the_newest_and_a_plus_sign(
    files: BackendUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kingdom.top.store_client._FAILED_MAX", 20)
    since = utc_now() - timedelta(hours=1)
    ids = [first_id("wf", since + timedelta(seconds=number)) for number in range(41)]
    async with files.open(REALM.topology, REALM.kinds) as bus:
        async with bus.transaction() as transaction:
            for run_id in ids:
                await transaction.put(Record(kind=WORKFLOWS.name, id=run_id, state=WorkflowStatus.FAILED))
        await keep(bus, *(a_run(number, WorkflowStatus.FAILED) for number in range(10)))
        async with opened_top(files, tmp_path) as anna:
            await anna.sees(" 1 runs 10+ ")
            await anna.press("4")
            await anna.until(lambda: f"unreadable {ids[-1]}" in anna.rows)
            assert {run_id for run_id in ids if f"unreadable {run_id}" in anna.rows} == {*ids[-20:]}
            async with bus.transaction() as transaction:
                record = await transaction.get(WORKFLOWS.name, ids[-1])
                assert record
                await transaction.put(record.replace(state=DELETED))
            await anna.until(lambda: f"unreadable {ids[20]}" in anna.rows)


async def test_dead_letters_and_paused_queues_are_shown_with_what_to_do(
    files: BackendUnderTest, tmp_path: Path
) -> None:
    stream = "workflow"
    async with files.open(REALM.topology, REALM.kinds) as bus:
        await bus.publish(Envelope(type="Odd", stream=stream, partition_key="a"))
        (delivery,) = await bus.claim(stream, 1, "somebody")
        async with bus.transaction([delivery]) as transaction:
            await transaction.settle(delivery, Dead("nobody knows it", "odd"))
        await operations_of(bus).pause(stream, reason="repairs", actor="anna")
        async with opened_top(files, tmp_path) as anna:
            await anna.press("2")
            await anna.sees(stream, "paused: repairs")
            await anna.press("enter")
            await anna.sees("1 dead", "odd: nobody knows it", "kingdom bus resume workflow")
            await anna.leaves("q")
            await anna.press("4")
            await anna.sees("1 dead letter in workflow")


@pytest.mark.both_stores
async def test_an_unavailable_store_is_reported_and_recovers_by_itself(
    backend: BackendUnderTest, tmp_path: Path
) -> None:
    async with backend.open(REALM.topology, REALM.kinds) as bus:
        await keep(bus, a_run(1, WorkflowStatus.RUNNING))
    async with opened_top(backend, tmp_path) as anna:
        await anna.sees("Run 1")
        await asyncio.to_thread(_take_away, backend)
        await anna.sees("no answer", "trying again", "Run 1")
        await anna.press("c")
        await anna.until(lambda: _tries_to_cancel(anna) or bool(anna.app.screen.query("Toast")), lambda: anna.text)
        assert "Cancel wf" not in anna.text
        await asyncio.to_thread(_bring_back, backend)
        await anna.until(lambda: "no answer" not in anna.text, lambda: anna.text)


def _tries_to_cancel(anna: TopUser) -> bool:
    return any(worker.name == "action_cancel" and worker.is_running for worker in anna.app.workers)


def _take_away(backend: BackendUnderTest) -> None:
    if backend.name == "files":
        Path(backend.place).rename(f"{backend.place}-away")
        return
    with psycopg.connect(backend.place, dbname="postgres", autocommit=True) as connection:
        connection.execute(_allow(backend, "false"))
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [_database(backend)]
        )


def _bring_back(backend: BackendUnderTest) -> None:
    if backend.name == "files":
        Path(f"{backend.place}-away").rename(backend.place)
        return
    with psycopg.connect(backend.place, dbname="postgres", autocommit=True) as connection:
        connection.execute(_allow(backend, "true"))


def _allow(backend: BackendUnderTest, allowed: str) -> sql.Composed:
    name = sql.Identifier(_database(backend))
    return sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS {}").format(name, sql.SQL(allowed))


def _database(backend: BackendUnderTest) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(backend.place)["dbname"])


async def test_the_screen_fits_a_small_and_a_large_terminal_and_needs_no_colors(
    files: BackendUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with files.open(REALM.topology, REALM.kinds) as bus:
        run = a_run(1, WorkflowStatus.FAILED)
        run.reason = "the reason is long " * 8
        await keep(bus, run)
        async with opened_top(files, tmp_path, size=(80, 24)) as anna:
            await anna.sees("FAILED", "today $", "q quit", "the reason is long the reason is long the reason")
            assert {len(line) for line in anna.text.splitlines()} == {80}
            assert anna.colors
            assert all(color.red == color.green == color.blue for color in anna.colors)
            await anna.pilot.resize_terminal(140, 40)
            await anna.until(lambda: {len(line) for line in anna.text.splitlines()} == {140})
            await anna.sees("the reason is long the reason is long the")
