"""From an event to its assignment and back, through the real bus."""

from datetime import timedelta

import pytest

from kingdom.court.documents import AssignmentStatus, EventStatus, Priority
from kingdom.court.king.reactions import reroute_event
from kingdom.court.king.settings import KingSettings
from kingdom.court.king.waiting_queue import line_query
from kingdom.errors import IllegalTransition
from tests.contract.backends import BackendUnderTest
from tests.integration.court.king.scene import opened
from tests.unit.court.king.making import NOON, make_event, make_package, wants

PR = make_package("gen-pr", wants("github.pr.*"), channel="dev")


async def test_an_event_becomes_an_assignment_with_its_thread_its_slots_and_its_log(backend: BackendUnderTest) -> None:
    async with opened(backend, PR) as scene:
        await scene.send(make_event(1))
        (assignment,) = await scene.assigned()
        event = await scene.event("evt-github-1")
        assert event.status is EventStatus.DISPATCHED
        assert [(route.general, route.rule, route.assignment_id) for route in event.routes] == [
            ("gen-pr", "gen-pr#1", assignment.id)
        ]
        # 12:01 in UTC is 21:01 in Seoul.
        assert assignment.id == "task-20261115-001"
        assert (assignment.event_id, assignment.target_general, assignment.repo) == (event.id, "gen-pr", "acme/app")
        assert (assignment.type, assignment.payload, assignment.status) == (event.type, {"number": 1}, "pending")
        for scope in ("soldiers", "repo:acme/app", "money"):
            assert list((await scene.quota(scope)).holders) == [assignment.id]
        assert await scene.messages() == [
            "thread_start: gen-pr starts github.pr.comment in acme/app as task-20261115-001."
        ]
        assert [(entry.type, entry.actor) for entry in await scene.log()] == [
            ("event.detected", "sentinel"),
            ("task.created", "king"),
            ("event.dispatched", "king"),
        ]
        reported = [stats for stats in await scene.operations.stats() if stats.stream == "court.task.gen-pr"]
        assert [stats.pending for stats in reported] == [1]


async def test_a_completed_assignment_frees_its_slots_books_its_cost_and_completes_its_event(
    backend: BackendUnderTest,
) -> None:
    async with opened(backend, PR) as scene:
        await scene.send(make_event(1))
        task = await scene.assignment_of("evt-github-1")
        await scene.complete(task, reason="commented", cost_usd=1.25)
        event = await scene.event("evt-github-1")
        assert (event.status, event.outcome, event.reason) == ("completed", "completed", "commented")
        for scope in ("soldiers", "repo:acme/app", "money"):
            assert not (await scene.quota(scope)).holders
        assert float((await scene.quota("money")).spent) == 1.25
        assert (await scene.messages())[-1] == f"thread_update: {task} is completed: commented"


async def test_a_failed_assignment_fails_its_event_with_the_reason(backend: BackendUnderTest) -> None:
    async with opened(backend, PR) as scene:
        await scene.send(make_event(1))
        await scene.store_assignment(
            await scene.assignment_of("evt-github-1"), AssignmentStatus.FAILED, reason="no tests pass"
        )
        event = await scene.event("evt-github-1")
        assert (event.status, event.outcome, event.reason) == ("failed", "failed", "no tests pass")


async def test_an_unwanted_event_stays_unrouted_until_it_is_routed_again(backend: BackendUnderTest) -> None:
    async with opened(backend) as scene:
        await scene.send(make_event(1))
        event = await scene.event("evt-github-1")
        assert (event.status, event.outcome) == ("completed", "unrouted")
        (discarded,) = await scene.log("event.discarded")
        assert discarded.data["reason"] == "no General subscribes to it"
        scene.packages.append(PR)
        async with scene.bus.transaction() as transaction:
            await reroute_event(transaction, "evt-github-1")
        await scene.settle()
        assert (await scene.assignment(await scene.assignment_of("evt-github-1"))).target_general == "gen-pr"
        with pytest.raises(IllegalTransition, match="only an unrouted event"):
            async with scene.bus.transaction() as transaction:
                await reroute_event(transaction, "evt-github-1")


async def test_an_event_for_two_generals_completes_when_both_are_done(backend: BackendUnderTest) -> None:
    audit = make_package("gen-audit", wants("*", also=True), order=200)
    settings = KingSettings(soldiers_per_repo=2)
    async with opened(backend, PR, audit, settings=settings) as scene:
        await scene.send(make_event(1))
        first, second = await scene.assigned()
        assert {first.target_general, second.target_general} == {"gen-pr", "gen-audit"}
        await scene.complete(first.id)
        assert (await scene.event("evt-github-1")).status is EventStatus.DISPATCHED
        await scene.store_assignment(second.id, AssignmentStatus.SKIPPED)
        event = await scene.event("evt-github-1")
        assert (event.status, event.outcome) == ("completed", "completed")


async def test_an_event_is_dispatched_only_when_all_its_generals_have_it(backend: BackendUnderTest) -> None:
    audit = make_package("gen-audit", wants("*", also=True), order=200)
    async with opened(backend, PR, audit) as scene:
        await scene.set_health("red")
        await scene.send(make_event(1))
        assert await scene.waiting_lines() == {"evt-github-1": "ready"}
        await scene.set_health("green")
        await scene.tick()
        # Both work in one repository, so one waits for the other.
        (first,) = await scene.assigned()
        assert (await scene.event("evt-github-1")).status is EventStatus.PENDING
        await scene.store_assignment(first.id, AssignmentStatus.FAILED, reason="broken")
        _, second = await scene.assigned()
        assert (await scene.event("evt-github-1")).status is EventStatus.DISPATCHED
        await scene.complete(second.id)
        event = await scene.event("evt-github-1")
        assert (event.status, event.outcome, event.reason) == ("failed", "failed", "broken")


async def test_a_newer_event_supersedes_a_waiting_one(backend: BackendUnderTest) -> None:
    keyed = make_package("gen-pr", wants("github.pr.*", supersedes="{repo}#{payload.number}"))
    async with opened(backend, keyed) as scene:
        await scene.send(make_event(1, payload={"number": 0}))
        about_seven = [make_event(number, payload={"number": 7}) for number in (2, 3, 4)]
        await scene.send(*about_seven)
        outcomes = [(await scene.event(event.id)).outcome for event in about_seven]
        assert outcomes == ["superseded", "superseded", ""]
        reasons = [entry.data["reason"] for entry in await scene.log("event.discarded")]
        assert reasons == ["superseded by evt-github-3", "superseded by evt-github-4"]
        assert await scene.waiting_lines() == {"evt-github-4": "repo:acme/app"}
        await scene.complete(await scene.assignment_of("evt-github-1"))
        # An event that is already assigned is not changed.
        await scene.send(make_event(5, payload={"number": 7}))
        assert (await scene.event("evt-github-4")).status is EventStatus.DISPATCHED
        assert (await scene.event("evt-github-5")).status is EventStatus.PENDING


async def test_an_older_event_that_arrives_late_is_superseded(backend: BackendUnderTest) -> None:
    keyed = make_package("gen-pr", wants("github.pr.*", supersedes="{repo}#{payload.number}"))
    async with opened(backend, keyed) as scene:
        newer, older = (make_event(number, payload={"number": 7}) for number in (9, 2))
        await scene.send(newer, older)
        assert (await scene.event(older.id)).reason == f"superseded by {newer.id}"
        assert (await scene.event(newer.id)).status is EventStatus.DISPATCHED


async def test_an_event_dated_in_the_future_does_not_supersede_later_events(backend: BackendUnderTest) -> None:
    keyed = make_package("gen-pr", wants("github.pr.*", supersedes="{repo}#{payload.number}"))
    async with opened(backend, keyed) as scene:
        await scene.send(make_event(1, payload={"number": 7}, created_at=NOON + timedelta(days=900)))
        scene.clock.forward(minutes=1)
        await scene.send(make_event(2, payload={"number": 7}, created_at=scene.clock()))
        assert (await scene.event("evt-github-2")).status is EventStatus.PENDING


async def test_a_debounced_event_is_held_back_for_newer_ones_and_the_newest_continues(
    backend: BackendUnderTest,
) -> None:
    patient = make_package("gen-pr", wants("*", supersedes="{payload.number}", debounce_seconds=60))
    async with opened(backend, patient) as scene:
        first, second = (make_event(number, payload={"number": 7}) for number in (1, 2))
        await scene.send(first)
        assert await scene.waiting_lines() == {first.id: "held"}
        scene.clock.forward(seconds=40)
        await scene.tick()
        await scene.send(second)
        scene.clock.forward(seconds=40)
        await scene.tick()
        # Its waiting time counts from its own arrival, not from that of the first event.
        assert await scene.waiting_lines() == {second.id: "held"}
        scene.clock.forward(seconds=30)
        await scene.tick()
        assert (await scene.event(first.id)).outcome == "superseded"
        assert [assignment.event_id for assignment in await scene.assigned()] == [second.id]


async def test_a_steady_flow_of_newer_events_does_not_hold_events_back_forever(backend: BackendUnderTest) -> None:
    patient = make_package("gen-pr", wants("*", supersedes="{payload.number}", debounce_seconds=60))
    async with opened(backend, patient) as scene:
        for number in range(1, 14):
            at = scene.clock() - timedelta(seconds=1)
            await scene.send(make_event(number, payload={"number": 7}, created_at=at))
            scene.clock.forward(seconds=50)
            await scene.tick()
        assert len(await scene.assigned()) == 1


async def test_a_general_that_is_gone_keeps_its_events_waiting_until_it_is_back(backend: BackendUnderTest) -> None:
    other = make_package("gen-other", wants("github.issue.*"))
    async with opened(backend, PR, other) as scene:
        await scene.send(make_event(1))
        await scene.send(make_event(2))
        scene.packages.remove(PR)
        await scene.complete(await scene.assignment_of("evt-github-1"))
        await scene.tick()
        assert await scene.waiting_lines() == {"evt-github-2": "absent:gen-pr"}
        scene.packages.append(PR)
        await scene.tick()
        assert await scene.assignment_of("evt-github-2")


async def test_a_jira_event_works_in_the_repository_of_its_general(backend: BackendUnderTest) -> None:
    jira = make_package("gen-jira", wants("jira.*"), default_repo="acme/app")
    async with opened(backend, jira) as scene:
        await scene.send(make_event(1, "jira.ticket.assigned", source="jira", repo=None))
        assert (await scene.assignment(await scene.assignment_of("evt-jira-1"))).repo == "acme/app"
        assert (await scene.quota("repo:acme/app")).holders


async def test_waiting_events_are_sorted_by_rank(backend: BackendUnderTest) -> None:
    async with opened(backend, PR) as scene:
        await scene.set_health("red")
        low = make_event(1, priority=Priority.LOW, created_at=NOON - timedelta(hours=5))
        normal = make_event(2, created_at=NOON - timedelta(hours=2))
        high = make_event(3, priority=Priority.HIGH)
        await scene.send(normal, high, low)
        async with scene.bus.transaction() as transaction:
            places = await transaction.find(line_query("ready"))
        assert [place.doc["event_id"] for place in places] == [low.id, high.id, normal.id]
