"""News that waits for a round is never lost or outdated: it waits again, is replaced, or is dropped with a reason."""

import pytest

from kingdom.court.documents import AssignmentStatus, ExternalEvent
from kingdom.court.followups.records import FollowupState
from kingdom.court.king.settings import KingSettings
from kingdom.court.package import RoundLimit
from tests.contract.backends import BackendUnderTest
from tests.integration.court.king.scene import opened
from tests.integration.court.king.test_rounds import (
    NEXT,
    answer,
    checks,
    conflict,
    follow,
    followed,
    general,
    happens,
    push,
    question,
    review,
    rounds,
)

FAILED = AssignmentStatus.FAILED
SETTLED = "a later commit or event has settled it"


@pytest.mark.both_stores
async def test_a_failed_round_is_repeated_with_the_same_news(backend: BackendUnderTest) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene)
        [first] = await happens(scene, review(1), checks(2, "unit"))
        for task, number in ((first, 10), (None, 11)):
            lost = task or (await rounds(scene))[-1]
            await scene.store_assignment(lost.id, FAILED, reason="the agent is lost")
            await scene.tick()
            assert await scene.waiting_lines() == {"evt-github-1": "round", "evt-github-2": "round"}
            assert (await scene.event("evt-github-1")).status == "pending"
            await scene.send(answer(number, lost.id, "continue"))
            await scene.tick()
        _, second, third = await rounds(scene)
        for again in (second, third):
            assert [each["text"] for each in again.payload["reviews"]] == ["Please."]
            assert [each["name"] for each in again.payload["failing"]] == ["unit"]
        await scene.complete(third.id)
        assert (await scene.event("evt-github-1")).outcome == "completed"


async def test_a_person_is_asked_after_a_failed_round_although_news_waits(backend: BackendUnderTest) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene)
        [first] = await happens(scene, review(1))
        await happens(scene, review(2, "Also this."))
        await scene.store_assignment(first.id, FAILED, reason="the agent is lost")
        await scene.tick()
        assert len(await rounds(scene)) == 1
        asked = await question(scene)
        assert asked
        assert "the last round failed: the agent is lost" in asked.text
        await scene.send(answer(3, first.id, "continue"))
        await scene.tick()
        _, second = await rounds(scene)
        assert [each["text"] for each in second.payload["reviews"]] == ["Please.", "Also this."]


@pytest.mark.parametrize("news", [checks(1, "unit"), conflict(1)], ids=["checks", "conflict"])
async def test_a_round_without_a_push_is_repeated_after_the_answer(
    backend: BackendUnderTest, news: ExternalEvent
) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene)
        [first] = await happens(scene, news, review(2))
        await scene.complete(first.id)
        await scene.tick()
        assert len(await rounds(scene)) == 1
        await scene.send(answer(3, first.id, "continue"))
        await scene.tick()
        _, second = await rounds(scene)
        assert second.payload["events"] == ["evt-github-1"], "the review was answered"
        await push(scene, NEXT)
        await scene.complete(second.id)
        assert (await followed(scene)).waiting == ()
        assert (await followed(scene)).state is FollowupState.OPEN


async def test_a_newer_check_result_replaces_the_waiting_one_of_the_same_commit(backend: BackendUnderTest) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene)
        await scene.send(checks(1, "lint", "unit"), conflict(2), checks(3, "unit"), conflict(4))
        assert set(await scene.waiting_lines()) == {"evt-github-3", "evt-github-4"}
        older = await scene.event("evt-github-1")
        assert (older.status, older.outcome, older.reason) == ("completed", "followed", "evt-github-3 is newer")
        [task] = await happens(scene)
        assert set(task.payload["events"]) == {"evt-github-3", "evt-github-4"}


async def test_passed_checks_end_the_wait_of_the_failed_ones(backend: BackendUnderTest) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene)
        await scene.send(checks(1, "unit"), checks(2, commit=NEXT))
        assert set(await scene.waiting_lines()) == {"evt-github-1"}, "they are about another commit"
        assert await happens(scene, checks(3)) == []
        assert await scene.waiting_lines() == {}
        assert (await followed(scene)).waiting == ()


async def test_news_about_an_older_head_is_dropped_when_a_round_starts(backend: BackendUnderTest) -> None:
    async with opened(backend, general(), settings=KingSettings(soldiers_per_repo=4)) as scene:
        await follow(scene)
        [first] = await happens(scene, review(1))
        await happens(scene, checks(2, "unit"))
        await push(scene, NEXT)
        await scene.send(review(3, "Also this."))
        await scene.complete(first.id)
        _, second = await happens(scene)
        assert second.payload["events"] == ["evt-github-3"]
        assert (await followed(scene)).waiting == ()
        left = await scene.event("evt-github-2")
        assert (left.status, left.outcome, left.reason) == ("completed", "followed", SETTLED)


async def test_news_without_a_round_left_waits_while_other_news_starts_a_round(backend: BackendUnderTest) -> None:
    async with opened(backend, general(checks=RoundLimit(rounds=1))) as scene:
        await follow(scene, rounds={"checks": 1})
        await scene.send(checks(1, "unit"))
        [first] = await happens(scene, review(2))
        assert first.payload["events"] == ["evt-github-2"]
        assert set(await scene.waiting_lines()) == {"evt-github-1"}
        await scene.complete(first.id)
        await scene.tick()
        asked = await question(scene)
        assert asked
        assert "all 1 rounds about failed checks are used" in asked.text
