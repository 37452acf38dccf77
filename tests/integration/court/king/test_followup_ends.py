"""A person can answer as long as a pull request is followed, and nothing waits for a followup that has ended."""

import msgspec
import pytest

from kingdom.court.followups.records import FollowupState, end_followup, find_followup
from kingdom.court.king.timers import release_waiting
from kingdom.court.package import RoundLimit
from tests.contract.backends import BackendUnderTest
from tests.integration.court.king.scene import Scene, opened
from tests.integration.court.king.test_rounds import (
    FIRST,
    PULL,
    answer,
    follow,
    followed,
    general,
    happens,
    question,
    review,
    rounds,
)
from tests.unit.court.king.making import NOON, make_package, wants

NOT_FOLLOWED = "the pull request is not followed any more"


async def dropped(scene: Scene, event_id: str) -> bool:
    """Return whether an event has ended because its pull request is not followed any more."""
    event = await scene.event(event_id)
    return (event.status, event.outcome, event.reason) == ("completed", "followed", NOT_FOLLOWED)


async def test_an_answer_counts_although_the_last_assignment_was_deleted(backend: BackendUnderTest) -> None:
    async with opened(backend, general(review=RoundLimit(rounds=1))) as scene:
        gone = "task-20261101-001"
        await follow(scene, rounds={"review": 1}, assignment_id=gone)
        await happens(scene, review(1))
        assert await question(scene)
        await scene.send(answer(2, gone, "continue"))
        await scene.tick()
        assert len(await rounds(scene)) == 1


async def test_an_answer_counts_as_long_as_the_pull_request_is_followed(backend: BackendUnderTest) -> None:
    async with opened(backend, general(review=RoundLimit(rounds=1))) as scene:
        await follow(scene, rounds={"review": 1})
        await happens(scene, review(1))
        scene.clock.forward(days=13)
        await scene.tick()
        assert await question(scene)
        await scene.send(answer(2, FIRST, "continue"))
        await scene.tick()
        assert len(await rounds(scene)) == 1


async def test_a_default_answer_is_given_at_its_deadline(backend: BackendUnderTest) -> None:
    asking = general(review=RoundLimit(rounds=1))
    policy = msgspec.structs.replace(asking.general.policy, ask_default="stop", ask_deadline_hours=2)
    stopping = msgspec.structs.replace(asking, general=msgspec.structs.replace(asking.general, policy=policy))
    async with opened(backend, stopping) as scene:
        await follow(scene, rounds={"review": 1})
        await happens(scene, review(1))
        scene.clock.forward(hours=3)
        await scene.tick()
        assert (await followed(scene)).state is FollowupState.ENDED


@pytest.mark.both_stores
async def test_the_king_ends_a_followup_after_its_maximum_age(backend: BackendUnderTest) -> None:
    async with opened(backend, general(review=RoundLimit(rounds=1))) as scene:
        await follow(scene, rounds={"review": 1})
        await happens(scene, review(1))
        scene.clock.forward(days=14)
        await scene.tick()
        ended = await followed(scene)
        assert (ended.state, ended.reason, ended.waiting) == ("ended", "its 14 days are over", ())
        assert await question(scene) is None
        assert await dropped(scene, "evt-github-1")


@pytest.mark.both_stores
async def test_news_that_waits_for_a_missing_general_is_dropped_when_its_followup_ends(
    backend: BackendUnderTest,
) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene)
        scene.packages.clear()
        await happens(scene, review(1))
        assert await scene.waiting_lines() == {"evt-github-1": "absent:gen-jira"}
        assert (await followed(scene)).state is FollowupState.OPEN, "its General may return"
        async with scene.bus.transaction() as transaction:
            found = await find_followup(transaction, PULL)
            assert found
            await end_followup(transaction, *found, "it was merged", at=NOON, actor="sentinel")
        await release_waiting(scene.bus, scene.clock(), scene.context)
        assert await scene.waiting_lines() == {}
        assert await dropped(scene, "evt-github-1")
        ended = await followed(scene)
        assert (ended.reason, ended.waiting) == ("it was merged", ())


async def test_a_followup_ends_when_its_general_has_no_section_follow(backend: BackendUnderTest) -> None:
    async with opened(backend, general(review=RoundLimit(rounds=1))) as scene:
        await follow(scene, rounds={"review": 1})
        await happens(scene, review(1))
        scene.packages[:] = [make_package("gen-jira", wants("jira.*"))]
        await scene.tick()
        ended = await followed(scene)
        assert (ended.state, ended.reason) == ("ended", "general.yaml of gen-jira has no section follow")
        assert await question(scene) is None
        assert await dropped(scene, "evt-github-1")


async def test_an_answer_always_grants_another_budget(backend: BackendUnderTest) -> None:
    async with opened(backend, general(budget_usd=0.5)) as scene:
        await follow(scene, cost_usd=9.0)
        assert await happens(scene, review(1)) == []
        await scene.send(answer(2, FIRST, "continue"))
        await scene.tick()
        assert len(await rounds(scene)) == 1
