"""Money in the court: the reserve bounds a run, people grant more, and the ledger has every cent."""

from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from kingdom.bus import RecordQuery
from kingdom.court.documents import AssignmentStatus, EventStatus, MessageType
from kingdom.court.general.context import run_id_of_root
from kingdom.court.king.costs import DEFAULT_MODEL, read_days
from kingdom.court.king.release import BILLS
from kingdom.court.king.waiting_queue import ANSWER, line_query
from kingdom.court.questions import load_question
from kingdom.court.quota import MONEY, QUOTAS, SOLDIERS
from kingdom.workflow import lifecycle
from kingdom.workflow.model.messages import answers
from kingdom.workflow.model.resources.template import OverBudget
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import WORKFLOWS, event_envelope
from tests.integration.court.general.scene import CourtScene, reports, work
from tests.integration.running import eventually

SUCCESS = reports(status="success", summary="done")
DEAR: tuple[dict[str, Any], ...] = ({"cost": 1.25}, {"wait_for": "never"})


async def run_of(court: CourtScene, root_id: str) -> Workflow:
    return await lifecycle.show(court.bus, run_id_of_root(root_id))


async def until_booked(court: CourtScene, usd: str) -> None:
    """Wait until the bills, the daily budget, the daily sums and the runs show the same cost."""

    async def booked() -> bool:
        async with court.bus.transaction() as transaction:
            bills = await transaction.find(RecordQuery(kind=BILLS.name))
            money = await transaction.get(QUOTAS.name, MONEY)
            days = await read_days(transaction, date.min + timedelta(days=1))
        billed = sum((Decimal(record.doc["usd"]) for record in bills), Decimal(0))
        of_the_day = Decimal(money.doc.get("spent", 0)) if money else None
        by_runs = Decimal(str(round(await spent_by_runs(court), 6)))
        for day in days:
            assert {sum(sums.values()) for sums in (day.generals, day.repositories, day.models)} == {day.usd}
        by_days = sum((day.usd for day in days), Decimal(0))
        assert {name for day in days for name in day.models} <= {DEFAULT_MODEL}
        return billed == of_the_day == by_runs == by_days == Decimal(usd)

    await eventually(booked)


async def spent_by_runs(court: CourtScene) -> float:
    async with court.bus.transaction() as transaction:
        found = await transaction.find(RecordQuery(kind=WORKFLOWS.name))
    return sum(Workflow.read(record.doc).cost_usd for record in found)


async def reserved_money(court: CourtScene) -> list[str]:
    return list((await court.held()).get(MONEY, {}).values())


async def test_a_run_that_exceeds_its_budget_asks_a_person_and_continues_with_the_same_budget_again(
    court: CourtScene,
) -> None:
    may_go = court.folder / "may-go"
    court.has(work("look", SUCCESS, {"cost": 1.25}, {"wait_for": str(may_go)}, {"cost": 0.5}), budget_usd=1)
    event_id = await court.send_event()
    asking = await court.until_assignment(AssignmentStatus.NEEDS_HUMAN)
    assert asking.reason.endswith("has cost $1.25 of its budget of $1.00. Should it go on with another $1.00?")
    await until_booked(court, "1.25")
    await court.until_nothing_is_held()

    may_go.touch()
    await court.answer(asking.id, "go on")
    await court.until_event(event_id, EventStatus.COMPLETED)
    resumed = (await court.assignments())[-1]
    assert (resumed.root, resumed.budget_usd) == (asking.id, 1.0)
    workflow = await run_of(court, asking.id)
    assert (workflow.status, workflow.budget_usd) == (WorkflowStatus.COMPLETED, 2.25)
    await until_booked(court, "1.75")
    assert (await court.result(asking.id))["metrics"]["cost_usd"] == 1.75
    await court.until_nothing_is_held()


async def test_a_question_about_the_budget_accepts_only_its_choices_and_stop_ends_the_assignment(
    court: CourtScene,
) -> None:
    court.has(work("look", SUCCESS, *DEAR), budget_usd=1, ask_default="carry on as you think best")
    event_id = await court.send_event()
    asking = await court.until_assignment(AssignmentStatus.NEEDS_HUMAN)
    async with court.bus.transaction() as transaction:
        known = await load_question(transaction, asking.id)
    assert known is not None
    assert (known[1].exact, known[1].default) == (True, "")
    ignored = await court.answer(asking.id, "maybe")
    assert (await court.until_event(ignored, EventStatus.COMPLETED)).outcome == "ignored"
    await court.answer(asking.id, "stop")
    failed = await court.until_event(event_id, EventStatus.FAILED)
    assert failed.reason == "killed: a person stopped it"
    await until_booked(court, "1.25")


async def test_a_run_that_is_stopped_by_its_budget_is_not_retried(court: CourtScene) -> None:
    court.has(work("look", SUCCESS, *DEAR), budget_usd=1, over_budget=OverBudget.STOP, retries=2)
    event_id = await court.send_event()
    failed = await court.until_event(event_id, EventStatus.FAILED)
    assert failed.reason.endswith("has cost $1.25 of its budget of $1.00")
    [assignment] = await court.assignments()
    assert assignment.retries == 0
    await until_booked(court, "1.25")


async def test_a_run_of_a_general_without_a_budget_gets_the_default_reserve_of_the_king(court: CourtScene) -> None:
    court.has(work("look", SUCCESS, {"ask": "left?"}))
    await court.send_event()
    asking = await court.until_assignment(AssignmentStatus.NEEDS_HUMAN)
    assert (await run_of(court, asking.id)).budget_usd == asking.budget_usd == 1.0


async def test_an_answered_run_waits_if_its_grant_exceeds_the_rest_of_the_daily_budget(court: CourtScene) -> None:
    court.has(work("look", SUCCESS, {"cost": 201}, {"wait_for": "never"}), budget_usd=200)
    await court.send_event()
    asking = await court.until_assignment(AssignmentStatus.NEEDS_HUMAN)
    await until_booked(court, "201")
    await court.answer(asking.id, "go on")

    async def waits() -> bool:
        async with court.bus.transaction() as transaction:
            places = await transaction.find(line_query(ANSWER))
        return [(place.doc["reason"], place.doc["usd"]) for place in places] == [
            ("resumes as soon as there is budget", 200.0)
        ]

    await eventually(waits)
    assert (await run_of(court, asking.id)).status is WorkflowStatus.AWAITING


async def test_a_run_that_is_answered_reserves_only_the_rest_of_its_budget(court: CourtScene) -> None:
    court.has(work("look", {"cost": 2}, {"ask": "left?"}, {"run": "sleep 60"}), budget_usd=3)
    await court.send_event()
    asking = await court.until_assignment(AssignmentStatus.NEEDS_HUMAN)
    await until_booked(court, "2")
    await court.answer(asking.id, "left")
    resumed = await court.until_assignment(AssignmentStatus.IN_PROGRESS)
    assert (resumed.budget_usd, await reserved_money(court)) == (1.0, ["1.0"])


async def test_a_run_at_the_rate_limit_of_its_vendor_keeps_its_slot_and_continues_without_a_person(
    court: CourtScene,
) -> None:
    court.has(work("look", SUCCESS, {"cost": 0.5}, {"usage_limit": 1}, {"cost": 0.25}))
    event_id = await court.send_event()

    async def is_reported() -> bool:
        return any("usage limit reached" in text for text in await court.messages(MessageType.THREAD_UPDATE))

    await eventually(is_reported)
    [assignment] = await court.assignments()
    assert (assignment.status, list((await court.held())[SOLDIERS])) == (AssignmentStatus.IN_PROGRESS, [assignment.id])
    async with court.bus.transaction() as transaction:
        assert await load_question(transaction, assignment.id) is None

    async def continued() -> bool:
        return bool(await lifecycle.resume_parked_runs(court.bus))

    await eventually(continued)
    await court.until_event(event_id, EventStatus.COMPLETED)
    await until_booked(court, "0.75")


@pytest.mark.parametrize("end", [{"fail": "no"}, {"crash": 3}], ids=["failed", "crashed"])
async def test_every_attempt_is_booked(court: CourtScene, end: dict[str, Any]) -> None:
    court.has(work("look", {"cost": 0.25}, end), retries=1)
    event_id = await court.send_event()
    await court.until_event(event_id, EventStatus.FAILED)
    workflow = await run_of(court, (await court.assignments())[0].id)
    assert workflow.cost_usd >= 0.25
    await until_booked(court, str(workflow.cost_usd))


async def test_the_cost_of_a_cancelled_run_is_booked(court: CourtScene) -> None:
    court.has(work("look", {"cost": 0.5}, {"say": "well"}, {"wait_for": "never"}))
    event_id = await court.send_event()
    assignment = await court.until_assignment(AssignmentStatus.IN_PROGRESS)

    async def at_work() -> bool:
        texts = [file.read_text() for file in court.folder.rglob("logs/sessions/*.json")]
        return any('"say"' in line for text in texts for line in text.splitlines() if '"step"' in line)

    await eventually(at_work)
    await lifecycle.cancel(court.bus, run_id_of_root(assignment.id), actor="anna")
    await court.until_event(event_id, EventStatus.FAILED)
    await until_booked(court, "0.5")


async def test_a_cost_that_is_reported_after_the_end_of_a_run_is_booked_too(court: CourtScene) -> None:
    court.has(work("look", SUCCESS, {"cost": 0.5}))
    event_id = await court.send_event()
    await court.until_event(event_id, EventStatus.COMPLETED)
    await until_booked(court, "0.5")
    root = (await court.assignments())[0]
    workflow = await run_of(court, root.id)
    late = answers.AgentSpent(
        host="host-a", epoch=1, attempt=1, work_id="w", task_id=workflow.works[0].tasks[0].id, cost_usd=0.75
    )
    async with court.bus.transaction() as transaction:
        await transaction.publish(event_envelope(late, "Workflow", workflow.id))
    await until_booked(court, "0.75")
    assert len(await court.messages(MessageType.THREAD_UPDATE)) == 1
    assert msgspec.structs.replace((await court.assignments())[0], cost_usd=0.5) == root
