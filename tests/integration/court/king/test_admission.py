"""Admission of events by slots, money and health, and the reasons why events wait."""

from datetime import timedelta
from decimal import Decimal

from kingdom.court.documents import AssignmentStatus, ExternalEvent, Priority
from kingdom.court.king.settings import KingSettings
from kingdom.court.king.waiting_queue import WAITING_ENTRIES
from kingdom.court.king.why import explain_event
from kingdom.court.quota import ONE, load_quota, save_quota
from tests.contract.backends import BackendUnderTest
from tests.integration.court.king.scene import Scene, opened
from tests.unit.court.king.making import make_event, make_package, wants

PR = make_package("gen-pr", wants("github.pr.*"))
ISSUES = make_package("gen-issue", wants("github.issue.*"))


async def assigned_events(scene: Scene) -> list[str]:
    return [assignment.event_id.removeprefix("evt-github-") for assignment in await scene.assigned()]


async def test_two_events_of_one_repository_run_one_after_the_other(backend: BackendUnderTest) -> None:
    async with opened(backend, PR) as scene:
        await scene.send(make_event(1), make_event(2), make_event(3, repo="acme/lib"))
        assert await assigned_events(scene) == ["1", "3"]
        assert await scene.waiting_lines() == {"evt-github-2": "repo:acme/app"}
        await scene.complete(await scene.assignment_of("evt-github-1"))
        assert await assigned_events(scene) == ["1", "3", "2"]
        assert await scene.waiting_lines() == {}


async def test_the_limit_of_a_repository_ignores_upper_case_and_is_not_shared_by_a_repository_with_the_same_slug(
    backend: BackendUnderTest,
) -> None:
    async with opened(backend, PR) as scene:
        await scene.send(make_event(1, repo="acme/web-app"), make_event(2, repo="acme-web/app"))
        assert await assigned_events(scene) == ["1", "2"]
        await scene.send(make_event(3, repo="Acme/Web-App"))
        assert await scene.waiting_lines() == {"evt-github-3": "repo:acme/web-app"}
        await scene.complete(await scene.assignment_of("evt-github-1"))
        assert await assigned_events(scene) == ["1", "2", "3"]


async def test_a_slot_counted_under_the_original_spelling_of_a_repository_is_released(
    backend: BackendUnderTest,
) -> None:
    async with opened(backend, PR) as scene:
        await scene.send(make_event(1, repo="Acme/App"))
        task = await scene.assignment_of("evt-github-1")
        async with scene.bus.transaction() as transaction:
            record, quota = await load_quota(transaction, "repo:Acme/App", ONE)
            await save_quota(transaction, quota.hold(task), record)
        await scene.complete(task)
        assert not (await scene.quota("repo:Acme/App")).holders
        assert not (await scene.quota("repo:acme/app")).holders


async def test_no_more_than_three_soldiers_work_at_once(backend: BackendUnderTest) -> None:
    async with opened(backend, PR) as scene:
        await scene.send(*(make_event(number, repo=f"acme/{number}") for number in range(1, 6)))
        assert await assigned_events(scene) == ["1", "2", "3"]
        assert await scene.waiting_lines() == {"evt-github-4": "ready", "evt-github-5": "ready"}
        await scene.store_assignment(await scene.assignment_of("evt-github-2"), AssignmentStatus.NEEDS_HUMAN)
        assert await assigned_events(scene) == ["1", "2", "3", "4"]


async def test_a_freed_slot_is_given_to_the_waiting_event_of_the_highest_rank(backend: BackendUnderTest) -> None:
    async with opened(backend, PR) as scene:
        await scene.send(make_event(1), make_event(2), make_event(3, priority=Priority.HIGH))
        await scene.complete(await scene.assignment_of("evt-github-1"))
        assert await assigned_events(scene) == ["1", "3"]


async def test_a_general_works_on_at_most_as_many_events_as_its_policy_allows(backend: BackendUnderTest) -> None:
    shy = make_package("gen-pr", wants("*"), policy={"concurrency": 1})
    async with opened(backend, shy) as scene:
        await scene.send(make_event(1, repo="acme/a"), make_event(2, repo="acme/b"))
        assert await scene.waiting_lines() == {"evt-github-2": "general:gen-pr"}
        await scene.complete(await scene.assignment_of("evt-github-1"))
        assert await assigned_events(scene) == ["1", "2"]


async def test_an_event_that_also_waits_for_its_general_does_not_block_its_free_repository(
    backend: BackendUnderTest,
) -> None:
    shy = make_package("gen-pr", wants("github.pr.*"), policy={"concurrency": 1})
    async with opened(backend, shy, ISSUES, settings=KingSettings(soldiers=9)) as scene:
        await scene.send(
            make_event(1, repo="acme/other"),
            make_event(2, "github.issue.comment"),
            # Events 3 and 4 wait for the repository of event 2, and event 3 also waits for its General.
            make_event(3),
            make_event(4, "github.issue.comment"),
        )
        lines = await scene.waiting_lines()
        assert lines.pop("evt-github-3") in ("repo:acme/app", "general:gen-pr")
        assert lines == {"evt-github-4": "repo:acme/app"}
        await scene.complete(await scene.assignment_of("evt-github-2"))
        assert await scene.waiting_lines() == {"evt-github-3": "general:gen-pr"}
        assert await assigned_events(scene) == ["1", "2", "4"]


async def test_reserved_money_counts_against_the_daily_budget(backend: BackendUnderTest) -> None:
    dear = make_package("gen-pr", wants("*"), policy={"budget_usd": 6.0})
    async with opened(backend, dear, settings=KingSettings(daily_usd=10, warning_percent=90)) as scene:
        await scene.send(make_event(1, repo="acme/a"), make_event(2, repo="acme/b"))
        assert await scene.waiting_lines() == {"evt-github-2": "money"}
        # The run cost less than the reserved amount.
        await scene.complete(await scene.assignment_of("evt-github-1"), cost_usd=0.5)
        assert await assigned_events(scene) == ["1", "2"]
        assert (await scene.quota("money")).spent == Decimal("0.5")


async def test_less_and_less_work_begins_as_money_is_spent_until_a_new_day(backend: BackendUnderTest) -> None:
    settings = KingSettings(daily_usd=100, reserved_usd=1, soldiers=9)
    async with opened(backend, PR, settings=settings) as scene:

        async def spend(number: int, usd: float) -> None:
            high = make_event(number, repo=f"acme/{number}", priority=Priority.HIGH, created_at=scene.clock())
            await scene.send(high)
            await scene.complete(await scene.assignment_of(high.id), cost_usd=usd)

        def fresh(number: int, priority: Priority) -> ExternalEvent:
            return make_event(number, repo=f"acme/{number}", priority=priority, created_at=scene.clock())

        await spend(1, 70)
        await scene.send(fresh(2, Priority.LOW), fresh(3, Priority.NORMAL))
        assert await scene.waiting_lines() == {"evt-github-2": "ready"}
        await spend(4, 21)
        await scene.send(fresh(5, Priority.NORMAL))
        assert set(await scene.waiting_lines()) == {"evt-github-2", "evt-github-5"}
        await spend(6, 9)
        await scene.send(fresh(7, Priority.HIGH))
        assert set(await scene.waiting_lines()) == {"evt-github-2", "evt-github-5", "evt-github-7"}
        # In Seoul the next day begins at 15:00 in UTC.
        scene.clock.forward(hours=3)
        await scene.tick()
        assert await scene.waiting_lines() == {}


async def test_yellow_health_admits_urgent_events_and_those_that_waited_long(backend: BackendUnderTest) -> None:
    async with opened(backend, PR, settings=KingSettings(soldiers=9)) as scene:
        await scene.set_health("yellow", "memory at 70 %")
        low = make_event(1, repo="acme/a", priority=Priority.LOW, created_at=scene.clock())
        high = make_event(2, repo="acme/b", priority=Priority.HIGH, created_at=scene.clock())
        await scene.send(low, high)
        assert await scene.waiting_lines() == {low.id: "ready"}
        scene.clock.forward(hours=4)
        await scene.set_health("yellow")
        await scene.tick()
        assert await scene.waiting_lines() == {}


async def test_orange_and_red_health_admit_nothing(backend: BackendUnderTest) -> None:
    async with opened(backend, PR) as scene:
        for level in ("orange", "red"):
            await scene.set_health(level)
            await scene.send(make_event(1, priority=Priority.HIGH))
            assert await scene.waiting_lines() == {"evt-github-1": "ready"}
        await scene.set_health("green")
        await scene.tick()
        assert await assigned_events(scene) == ["1"]


async def test_busy_processors_let_one_run_at_a_time_begin(backend: BackendUnderTest) -> None:
    busy = {"stop_level": "green", "slot_share": 0.0, "slot_reason": "cpu_percent: 97"}
    async with opened(backend, PR) as scene:
        await scene.set_health("red", "cpu_percent: 97", **busy)
        await scene.send(*(make_event(number, repo=f"acme/{number}", priority=Priority.LOW) for number in (1, 2, 3)))
        assert await assigned_events(scene) == ["1"]
        async with scene.bus.transaction() as transaction:
            (wait,) = (await explain_event(transaction, "evt-github-2", scene.clock(), scene.context)).waits
        task = await scene.assignment_of("evt-github-1")
        assert wait.held_by == f"the machine is busy (CPU pressure 97 %), so one run at a time, held by {task}"
        await scene.complete(task)
        assert await assigned_events(scene) == ["1", "2"]
        await scene.set_health("yellow", "cpu_percent: 65", **{**busy, "slot_share": 0.5})
        await scene.tick()
        assert await assigned_events(scene) == ["1", "2", "3"]


async def test_a_stale_reading_of_the_health_counts_as_orange(backend: BackendUnderTest) -> None:
    async with opened(backend, PR) as scene:
        await scene.set_health("green")
        scene.clock.forward(seconds=121)
        await scene.send(make_event(1, priority=Priority.HIGH))
        assert await scene.waiting_lines() == {"evt-github-1": "ready"}
        await scene.set_health("green")
        await scene.tick()
        assert await assigned_events(scene) == ["1"]


async def test_the_timer_frees_a_slot_whose_assignment_ended_without_a_notice(backend: BackendUnderTest) -> None:
    async with opened(backend, PR, settings=KingSettings(soldiers=1)) as scene:
        await scene.send(make_event(1), make_event(2, repo="acme/b"))
        async with scene.bus.transaction() as transaction:
            record = await transaction.get("task", await scene.assignment_of("evt-github-1"))
            assert record
            await transaction.put(record.replace(state="failed", doc={**record.doc, "status": "failed"}))
        await scene.tick()
        assert await assigned_events(scene) == ["1", "2"]


async def test_many_events_that_wait_for_one_repository_do_not_delay_other_repositories(
    backend: BackendUnderTest,
) -> None:
    async with opened(backend, PR) as scene:
        await scene.set_health("red")
        await scene.send(*(make_event(number) for number in range(1, 46)), make_event(46, repo="acme/lib"))
        await scene.set_health("green")
        await scene.tick()
        assert await assigned_events(scene) == ["1", "46"]
        assert set((await scene.waiting_lines()).values()) == {"repo:acme/app"}


async def test_an_event_damaged_by_a_person_blocks_nothing_else(backend: BackendUnderTest) -> None:
    async with opened(backend, PR, settings=KingSettings(soldiers=1)) as scene:
        await scene.send(make_event(1), make_event(2), make_event(3, repo="acme/lib"))
        async with scene.bus.transaction() as transaction:
            record = await transaction.get("event", "evt-github-2")
            assert record
            await transaction.put(record.replace(doc={"id": "evt-github-2"}))
        await scene.complete(await scene.assignment_of("evt-github-1"))
        assert await assigned_events(scene) == ["1", "3"]


async def test_a_budget_above_the_daily_budget_reserves_the_whole_daily_budget(backend: BackendUnderTest) -> None:
    dear = make_package("gen-pr", wants("*"), policy={"budget_usd": 400.0})
    async with opened(backend, dear) as scene:
        await scene.send(make_event(1), make_event(2, repo="acme/lib"))
        assert await assigned_events(scene) == ["1"]
        assert await scene.waiting_lines() == {"evt-github-2": "money"}


async def test_waiting_events_are_assigned_in_the_order_of_their_rank(backend: BackendUnderTest) -> None:
    async with opened(backend, PR, settings=KingSettings(soldiers=1)) as scene:
        await scene.set_health("red")
        for number in range(1, 31):
            age = timedelta(minutes=(number * 7) % 30)
            await scene.send(make_event(number, repo=f"acme/{number % 3}", created_at=scene.clock() - age))
        expected = [record.doc["event_id"] for record in await scene.find(WAITING_ENTRIES.name)]
        await scene.set_health("green")
        await scene.tick()
        for event_id in expected:
            await scene.complete(await scene.assignment_of(event_id))
        assert [assignment.event_id for assignment in await scene.assigned()] == expected
