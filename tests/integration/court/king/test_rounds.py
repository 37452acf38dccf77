"""News about a followed pull request starts rounds of work: one at a time, counted, and within their limits."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from kingdom.bus import Record, Transaction
from kingdom.court.documents import FOLLOWUP, Assignment, AssignmentStatus, ExternalEvent, Priority
from kingdom.court.followups.records import (
    FOLLOWUPS,
    Followup,
    FollowupState,
    end_followup,
    find_followup,
    save_followup,
)
from kingdom.court.king.settings import KingSettings
from kingdom.court.king.timers import run_timers_once
from kingdom.court.package import FollowPolicy, Package, RoundLimit
from kingdom.court.questions import HumanQuestion, QuestionStatus, load_question
from kingdom.court.records import ASSIGNMENTS, ENDED, RESULTS, save
from kingdom.court.streams import TOPOLOGY
from tests.contract.backends import BackendUnderTest
from tests.integration.court.king.scene import EVERY_KIND, Scene, opened
from tests.integration.soldiers.host_barriers import Barrier
from tests.patience import PATIENCE_SECONDS
from tests.unit.court.king.making import NOON, make_event, make_package, wants

REPO, NUMBER = "acme/app", 7
PULL = f"{REPO}#{NUMBER}"
FIRST = "task-20261115-900"
HEAD, NEXT = "a" * 40, "b" * 40
COMMENT = {"id": 1, "thread": "1", "path": "fin.py", "line": 2, "side": "RIGHT", "text": "Why two?", "actor": "anna"}
MERGED = make_event(99, "github.pr.merged", payload={"number": NUMBER, "commit": HEAD})


def general(**follow: Any) -> Package:
    return make_package("gen-jira", wants("jira.*"), follow=FollowPolicy(**follow))


def review(number: int, text: str = "Please.") -> ExternalEvent:
    told = {"review_id": number, "state": "changes_requested", "actor": "anna", "text": text, "comments": [COMMENT]}
    return make_event(number, "github.pr.review_submitted", payload={"number": NUMBER, **told})


def checks(number: int, *failing: str, commit: str = HEAD, **more: Any) -> ExternalEvent:
    failed = [{"name": name, "conclusion": "failure", "summary": "", "annotations": [], "log": ""} for name in failing]
    told = {"commit": commit, "conclusion": "failure" if failing else "success", "failing": failed, **more}
    return make_event(number, "github.checks.completed", payload={"number": NUMBER, **told})


def conflict(number: int) -> ExternalEvent:
    told = {"base": "main", "commit": HEAD, "base_commit": NEXT}
    return make_event(number, "github.pr.conflict", payload={"number": NUMBER, **told})


def answer(number: int, task: str, text: str) -> ExternalEvent:
    payload = {"task_id": task, "text": text, "user": "anna"}
    return make_event(number, "cli.human_response", source="cli", repo=None, payload=payload, priority=Priority.HIGH)


async def follow(scene: Scene, **more: Any) -> None:
    """Follow the pull request of an assignment that has ended."""
    first = Assignment(
        id=FIRST,
        event_id="evt-jira-1",
        target_general="gen-jira",
        type="jira.ticket.assigned",
        payload={"key": "QP-1"},
        priority=Priority.NORMAL,
        created_at=NOON,
        status=AssignmentStatus.COMPLETED,
        repo=REPO,
    )
    followup = Followup(
        id=PULL,
        repo=REPO,
        number=NUMBER,
        branch="kingdom/wf-1/app",
        base="main",
        general="gen-jira",
        assignment_id=FIRST,
        workflow_id=f"wf-{FIRST}",
        head=HEAD,
        created_at=NOON,
        pushed_at=NOON,
        ends_at=NOON + timedelta(days=14),
    )
    async with scene.bus.transaction() as transaction:
        await save(transaction, first)
        await save_followup(transaction, msgspec.structs.replace(followup, **more), None)


async def followed(scene: Scene) -> Followup:
    async with scene.bus.transaction() as transaction:
        found = await find_followup(transaction, PULL)
    assert found
    return found[1]


async def push(scene: Scene, head: str) -> None:
    """Let the round push a commit."""
    async with scene.bus.transaction() as transaction:
        found = await find_followup(transaction, PULL)
        assert found
        await save_followup(transaction, msgspec.structs.replace(found[1], head=head), found[0])


async def rounds(scene: Scene) -> list[Assignment]:
    return [each for each in await scene.assigned() if each.type == FOLLOWUP]


async def happens(scene: Scene, *events: ExternalEvent) -> list[Assignment]:
    """Send events, let the time pass in which the King waits for more of them, and return all rounds."""
    await scene.send(*events)
    scene.clock.forward(seconds=31)
    await scene.tick()
    return await rounds(scene)


async def question(scene: Scene) -> HumanQuestion | None:
    """Return the open question about the pull request."""
    async with scene.bus.transaction() as transaction:
        known = await load_question(transaction, (await followed(scene)).assignment_id)
    return known[1] if known and known[1].status is QuestionStatus.OPEN else None


@pytest.mark.both_stores
async def test_several_reviews_and_failed_checks_become_one_counted_round(backend: BackendUnderTest) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene)
        await scene.send(review(1), review(2, "And this."), checks(3, "unit"))
        assert await rounds(scene) == [], "more may follow"
        [task] = await happens(scene)
        assert (task.target_general, task.repo, task.subject) == ("gen-jira", REPO, PULL)
        told = task.payload
        assert (told["number"], told["branch"], told["base"]) == (NUMBER, "kingdom/wf-1/app", "main")
        assert [each["text"] for each in told["reviews"]] == ["Please.", "And this."]
        assert [each["name"] for each in told["failing"]] == ["unit"]
        followup = await followed(scene)
        assert followup.rounds == {"review": 1, "checks": 1}
        assert (followup.assignment_id, followup.workflow_id) == (task.id, f"wf-{task.id}")
        assert (followup.failing, followup.waiting) == (("unit",), ())
        events = [await scene.event(f"evt-github-{number}") for number in (1, 2, 3)]
        assert [each.status for each in events] == ["dispatched", "completed", "completed"]
        await scene.complete(task.id)
        assert (await scene.event("evt-github-1")).outcome == "completed"


async def test_news_during_a_round_waits_for_the_next_round(backend: BackendUnderTest) -> None:
    async with opened(backend, general(), settings=KingSettings(soldiers_per_repo=4)) as scene:
        await follow(scene)
        [first] = await happens(scene, review(1))
        assert await happens(scene, review(2, "Also this.")) == [first]
        assert await scene.waiting_lines() == {"evt-github-2": "round"}
        await scene.complete(first.id)
        await scene.tick()
        _, second = await rounds(scene)
        assert [each["text"] for each in second.payload["reviews"]] == ["Also this."]
        assert second.payload["continues"] == f"wf-{first.id}"
        assert (await followed(scene)).rounds == {"review": 2}


async def test_no_round_starts_while_the_assignment_that_opened_the_pull_request_works(
    backend: BackendUnderTest,
) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene)
        await scene.store_assignment(FIRST, AssignmentStatus.IN_PROGRESS)
        assert await happens(scene, review(1)) == []
        await scene.complete(FIRST)
        await scene.tick()
        assert len(await rounds(scene)) == 1


@pytest.mark.both_stores
async def test_a_person_is_asked_after_the_last_round_and_can_grant_more(backend: BackendUnderTest) -> None:
    async with opened(backend, general(review=RoundLimit(rounds=1))) as scene:
        await follow(scene)
        [first] = await happens(scene, review(1))
        await scene.complete(first.id)
        assert await happens(scene, review(2)) == [await scene.assignment(first.id)]
        assert (await followed(scene)).state is FollowupState.WAITING
        asked = await question(scene)
        assert asked
        assert "all 1 rounds about reviews are used" in asked.text
        assert "1 about reviews" in asked.text
        assert (asked.choices, asked.followup) == (("continue", "stop"), PULL)
        assert any("human_input_request" in each for each in await scene.messages())
        await scene.send(answer(3, first.id, "continue"))
        await scene.tick()
        assert len(await rounds(scene)) == 2
        followup = await followed(scene)
        assert (followup.state, followup.grants, followup.rounds) == ("open", 1, {"review": 2})


async def test_a_person_can_stop_instead(backend: BackendUnderTest) -> None:
    async with opened(backend, general(review=RoundLimit(rounds=1))) as scene:
        await follow(scene, rounds={"review": 1})
        await happens(scene, review(1))
        await scene.send(answer(2, FIRST, "stop"))
        await scene.tick()
        followup = await followed(scene)
        assert (followup.state, followup.reason) == ("ended", "anna stopped it")
        assert await rounds(scene) == []
        event = await scene.event("evt-github-1")
        assert (event.outcome, event.reason) == ("followed", "the pull request is not followed any more")


async def test_rounds_stop_early_when_the_failed_checks_do_not_shrink(backend: BackendUnderTest) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene)
        [first] = await happens(scene, checks(1, "lint", "unit"))
        await push(scene, NEXT)
        await scene.complete(first.id)
        _, second = await happens(scene, checks(2, "unit", commit=NEXT))
        await push(scene, "c" * 40)
        await scene.complete(second.id)
        assert len(await happens(scene, checks(3, "unit", commit="c" * 40))) == 2
        asked = await question(scene)
        assert asked
        assert "the last round repaired none of the failed checks: unit" in asked.text


@pytest.mark.parametrize("answered", ["continue", "stop"])
async def test_a_person_is_asked_if_checks_pass_with_fewer_tests_than_before_the_round(
    backend: BackendUnderTest, answered: str
) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene)
        [task] = await happens(scene, checks(1, "unit", tests={"unit": 41}))
        await push(scene, NEXT)
        await scene.complete(task.id)
        assert [each.id for each in await happens(scene, checks(2, commit=NEXT, tests={"unit": 40}))] == [task.id]
        asked = await question(scene)
        assert asked
        assert "fewer tests ran than before the last round: unit 40 instead of 41" in asked.text
        await scene.send(answer(3, task.id, answered))
        await scene.tick()
        followup = await followed(scene)
        assert followup.state == ("open" if answered == "continue" else "ended")
        assert len(await rounds(scene)) == 1, "there is nothing to repair"
        assert followup.waiting == ()
        if answered == "continue":
            await happens(scene, checks(4, commit=NEXT, tests={"unit": 40}))
            assert (await followed(scene)).state == "open", "a person has accepted 40"


async def test_passed_checks_with_as_many_tests_need_no_person(backend: BackendUnderTest) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene, failing=("unit",), tests={"unit": 41}, rounds={"checks": 1})
        assert await happens(scene, checks(1, tests={"unit": 41})) == []
        followup = await followed(scene)
        assert (followup.state, followup.failing, followup.tests) == ("open", (), {})


async def test_after_passed_checks_a_later_failure_starts_a_round_again(backend: BackendUnderTest) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene, failing=("unit",), rounds={"checks": 1})
        await scene.send(checks(1))
        assert (await followed(scene)).failing == ()
        assert len(await happens(scene, checks(2, "unit"))) == 1


@pytest.mark.parametrize("news", [checks(1, "unit"), conflict(1)], ids=["checks", "conflict"])
async def test_a_person_is_asked_after_a_round_without_a_push(backend: BackendUnderTest, news: ExternalEvent) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene)
        [task] = await happens(scene, news)
        await scene.complete(task.id, cost_usd=0.1)
        assert (await followed(scene)).cost_usd == pytest.approx(0.1)
        asked = await question(scene)
        assert asked
        assert "ended without a push" in asked.text


async def test_the_end_of_a_followup_closes_its_question(backend: BackendUnderTest) -> None:
    async with opened(backend, general(review=RoundLimit(rounds=1))) as scene:
        await follow(scene, rounds={"review": 1})
        await happens(scene, review(1))
        assert await question(scene)
        async with scene.bus.transaction() as transaction:
            found = await find_followup(transaction, PULL)
            assert found
            await end_followup(transaction, *found, "it was merged", at=scene.clock(), actor="sentinel")
        assert await question(scene) is None
        await scene.tick()
        assert await scene.waiting_lines() == {}


async def test_a_person_is_asked_after_a_failed_round(backend: BackendUnderTest) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene)
        [task] = await happens(scene, review(1))
        await scene.store_assignment(task.id, AssignmentStatus.FAILED, reason="the agent is lost")
        asked = await question(scene)
        assert asked
        assert "the last round failed: the agent is lost" in asked.text


async def test_the_cost_of_rounds_is_added_and_limited(backend: BackendUnderTest) -> None:
    async with opened(backend, general(budget_usd=0.5)) as scene:
        await follow(scene)
        [task] = await happens(scene, review(1))
        await scene.complete(task.id, cost_usd=0.6)
        assert (await followed(scene)).cost_usd == pytest.approx(0.6)
        assert len(await happens(scene, review(2))) == 1
        asked = await question(scene)
        assert asked
        assert "its rounds have cost $0.60" in asked.text


async def test_a_round_may_cost_no_more_than_what_is_left_for_all_rounds(backend: BackendUnderTest) -> None:
    async with opened(backend, general(budget_usd=3), settings=KingSettings(reserved_usd=2)) as scene:
        await follow(scene)
        [first] = await happens(scene, review(1))
        assert first.budget_usd == 2, "the budget of an assignment is smaller"
        await scene.complete(first.id, cost_usd=1.75)
        _, second = await happens(scene, review(2))
        assert second.budget_usd == pytest.approx(1.25)


async def test_the_cost_of_another_assignment_about_the_pull_request_is_not_added(backend: BackendUnderTest) -> None:
    reviews = make_package("gen-pr", wants("github.pr.comment", supersedes="{repo}#{payload.number}"))
    async with opened(backend, general(), reviews) as scene:
        await follow(scene)
        await scene.send(make_event(NUMBER))
        await scene.complete(await scene.assignment_of(f"evt-github-{NUMBER}"), cost_usd=1)
        assert (await followed(scene)).cost_usd == 0


async def test_an_answer_reaches_the_next_session_as_a_report(backend: BackendUnderTest) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene)
        [first] = await happens(scene, review(1))
        async with scene.bus.transaction() as transaction:
            doc = {"task_id": first.id, "status": "success", "summary": "I renamed two to zwei."}
            await transaction.put(Record(kind=RESULTS.name, id=first.id, state=ENDED, doc=doc))
        await scene.complete(first.id)
        _, second = await happens(scene, review(2))
        assert second.payload["reports"] == ["I renamed two to zwei."]


async def test_news_about_other_pull_requests_and_ended_followups_is_routed_as_usual(
    backend: BackendUnderTest,
) -> None:
    watcher = make_package("gen-watch", wants("github.pr.*"))
    async with opened(backend, general(), watcher, settings=KingSettings(soldiers_per_repo=4)) as scene:
        await follow(scene)
        await scene.send(MERGED, make_event(8, "github.pr.conflict"))
        assert [each.target_general for each in await scene.assigned() if each.id != FIRST] == ["gen-watch"] * 2
        assert await rounds(scene) == []


@pytest.mark.both_stores
async def test_two_kings_start_a_round_once_and_count_it_with_its_assignment(backend: BackendUnderTest) -> None:
    seen: set[tuple[bool, bool]] = set()

    def starts_round(transaction: Transaction) -> bool:
        puts = transaction.changes.puts
        creates = any(kind == ASSIGNMENTS.name for kind, _ in puts)
        counts = any(kind == FOLLOWUPS.name and put.record.doc["rounds"] for (kind, _), put in puts.items())
        seen.add((creates, counts))
        return creates

    barrier = Barrier(starts_round)
    async with opened(backend, general()) as scene, backend.open(TOPOLOGY, EVERY_KIND) as other:
        await follow(scene)
        await scene.send(review(1))
        scene.clock.forward(seconds=31)
        slow = asyncio.create_task(run_timers_once(barrier.wrap(other), scene.context))
        await barrier.reached()
        assert ((await followed(scene)).rounds, await rounds(scene)) == ({}, []), "a crash now has done neither"
        await scene.tick()
        barrier.open()
        await asyncio.wait_for(slow, PATIENCE_SECONDS)
        assert len(await rounds(scene)) == 1
        assert (await followed(scene)).rounds == {"review": 1}
    assert seen == {(False, False), (True, True)}, "no transaction does one of them alone"
