"""The explanation of an event: its General, why it waits, and its outcome. Other rules can be simulated."""

from datetime import timedelta

from kingdom.court.documents import Priority
from kingdom.court.king.settings import KingSettings
from kingdom.court.king.simulation import RoutingSimulation, simulate_routing
from kingdom.court.king.why import EventExplanation, explain_event
from kingdom.court.package import Package
from kingdom.court.records import receive_event
from tests.contract.backends import BackendUnderTest
from tests.integration.court.king.scene import Scene, opened
from tests.integration.court.king.test_rounds import checks, follow, general, review
from tests.unit.court.king.making import NOON, every, make_event, make_package, wants

PR = make_package("gen-pr", wants("github.pr.*"))


async def why(scene: Scene, event_id: str) -> EventExplanation:
    async with scene.bus.transaction() as transaction:
        return await explain_event(transaction, event_id, scene.clock(), scene.context)


async def test_a_waiting_event_shows_what_holds_it_and_how_many_are_ahead(backend: BackendUnderTest) -> None:
    async with opened(backend, PR, settings=KingSettings(soldiers=1)) as scene:
        await scene.send(*(make_event(number, repo=f"acme/{number}") for number in (1, 2, 3)))
        (wait,) = (await why(scene, "evt-github-3")).waits
        assert (wait.general, wait.line, wait.ahead) == ("gen-pr", "ready", 1)
        assert wait.held_by == "all soldiers are busy (1 of 1), held by task-20261115-001"
        await scene.set_health("yellow", "memory at 65 %")
        (wait,) = (await why(scene, "evt-github-3")).waits
        assert wait.held_by == "health is yellow (memory at 65 %), so only high-priority work starts"


async def test_every_other_reason_to_wait_is_explained_too(backend: BackendUnderTest) -> None:
    shy = make_package("gen-shy", wants("jira.*"), policy={"concurrency": 1})
    slow = make_package("gen-slow", wants("slack.*", debounce_seconds=60))
    dear = make_package("gen-dear", wants("cron.*"), policy={"budget_usd": 400.0})
    async with opened(backend, PR, shy, slow, dear, settings=KingSettings(soldiers=9)) as scene:

        async def held_by(event_id: str) -> str:
            (wait,) = (await why(scene, event_id)).waits
            return wait.held_by

        await scene.send(make_event(1), make_event(2))
        assert await held_by("evt-github-2") == "all slots of acme/app are in use (1 of 1), held by task-20261115-001"
        await scene.send(*(make_event(number, "jira.x", source="jira", repo=None) for number in (3, 4)))
        assert await held_by("evt-jira-4") == "all slots of gen-shy are in use (1 of 1), held by task-20261115-002"
        await scene.send(make_event(5, "slack.x", source="slack"))
        assert await held_by("evt-slack-5") == "held back until 2026-11-15T12:02:00+00:00 in case a newer event follows"
        await scene.send(make_event(6, "cron.x", source="cron", repo=None))
        assert (await held_by("evt-cron-6")).startswith("$0.00 spent and $10.00 reserved of $300.00, held by task-")
        scene.packages.remove(PR)
        await scene.complete("task-20261115-001")
        assert await held_by("evt-github-2") == "there is no General gen-pr now"


async def test_an_event_shows_its_assignments_and_the_rules_that_were_considered(backend: BackendUnderTest) -> None:
    other = make_package("gen-other", wants("jira.*"), order=1)
    async with opened(backend, PR, other) as scene:
        await scene.send(make_event(1))
        explanation = await why(scene, "evt-github-1")
        assert explanation.status_text == "It was given to gen-pr by gen-pr#1."
        assert [(each.assignment_id, each.status) for each in explanation.assignments] == [
            ("task-20261115-001", "pending")
        ]
        assert [(each.rule, each.chosen) for each in explanation.considered] == [
            ("gen-other#1", False),
            ("gen-pr#1", True),
        ]
        await scene.complete("task-20261115-001", reason="all good")
        assert (await why(scene, "evt-github-1")).status_text == "It is completed: all good."
        await scene.send(make_event(2, "slack.app_mention", source="slack"))
        unrouted = await why(scene, "evt-slack-2")
        assert unrouted.status_text == "It is completed, unrouted: no General subscribes to it."
        assert not any(each.chosen for each in unrouted.considered)


async def test_an_event_that_no_king_has_routed_says_so(backend: BackendUnderTest) -> None:
    async with opened(backend, PR, kings=0) as scene:
        async with scene.bus.transaction() as transaction:
            await receive_event(transaction, make_event(1), "sentinel")
        explanation = await why(scene, "evt-github-1")
        assert explanation.status_text == (
            "The King has not routed it yet: `kingdom status` shows whether the King runs."
        )


async def test_a_simulation_shows_what_other_rules_would_decide(backend: BackendUnderTest) -> None:
    nightly = make_package("gen-report", schedules=[every("* * * * *")])

    async def differences(scene: Scene, *packages: Package) -> RoutingSimulation:
        async with scene.bus.transaction() as transaction:
            return await simulate_routing(transaction, scene.operations, packages, NOON - timedelta(days=7))

    async with opened(backend, PR, nightly, settings=KingSettings(soldiers=1)) as scene:
        await scene.tick()
        scene.clock.forward(minutes=1)
        await scene.tick()
        await scene.send(
            make_event(1),
            make_event(2, "github.pr.review_requested", priority=Priority.HIGH),
            make_event(3, "jira.ticket.assigned", source="jira"),
            make_event(4, "slack.app_mention", source="slack"),
            make_event(5, created_at=NOON - timedelta(days=8)),
        )
        same = await differences(scene, *scene.packages)
        assert (same.differences, same.unchanged, same.forgotten) == ((), 4, 0)
        review = make_package("gen-review", wants("*.review_requested"), wants("jira.*"))
        found = await differences(scene, review)
        assert {each.event_id: (each.change, each.before, each.after) for each in found.differences} == {
            "evt-github-1": ("newly unrouted", ("gen-pr",), ()),
            "evt-github-2": ("other General", ("gen-pr",), ("gen-review",)),
            "evt-jira-3": ("newly routed", (), ("gen-review",)),
        }
        assert found.unchanged == 1


async def test_a_simulation_compares_no_event_that_a_followup_took(backend: BackendUnderTest) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene)
        await scene.send(checks(1, "unit"), checks(2, "unit"), review(3))
        async with scene.bus.transaction() as transaction:
            same = await simulate_routing(transaction, scene.operations, scene.packages, NOON - timedelta(days=7))
        assert (same.differences, same.unchanged, same.forgotten) == ((), 0, 0)
