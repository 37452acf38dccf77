"""Cancelled and timed-out checks are run again once for each commit, before they count as failed."""

import msgspec
import pytest

from kingdom.court.documents import ExternalEvent
from kingdom.court.followups.rules import RERUN
from kingdom.court.records import EVENTS, save
from kingdom.court.streams import PETITION_STREAM, event_received
from tests.contract.backends import BackendUnderTest
from tests.integration.court.king.scene import Scene, opened
from tests.integration.court.king.test_rounds import (
    HEAD,
    NEXT,
    checks,
    follow,
    followed,
    general,
    happens,
    push,
    rounds,
)


def interrupted(number: int, *names: str, failed: tuple[str, ...] = (), commit: str = HEAD) -> ExternalEvent:
    """Return the result of checks of which some did not run to their end."""
    event = checks(number, *names, *failed, commit=commit)
    runs = [{"id": 100 * number + each, "name": name, "suite": 1, "is_job": True} for each, name in enumerate(names)]
    return msgspec.structs.replace(event, payload={**event.payload, "interrupted": runs})


async def reruns(scene: Scene) -> int:
    """Return how many checks should be run again. Nothing performs this here."""
    return sum(each.pending for each in await scene.operations.stats() if each.stream == PETITION_STREAM.name)


@pytest.mark.both_stores
async def test_checks_that_did_not_end_are_run_again_once_and_then_count_as_failed(backend: BackendUnderTest) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene)
        assert await happens(scene, interrupted(1, "unit", "lint")) == []
        assert await reruns(scene) == 2
        event = await scene.event("evt-github-1")
        assert (event.status, event.outcome) == ("completed", RERUN)
        [task] = await happens(scene, interrupted(2, "unit"))
        assert await reruns(scene) == 2, "once for a commit"
        assert [each["name"] for each in task.payload["failing"]] == ["unit"]


async def test_checks_of_the_next_commit_are_run_again(backend: BackendUnderTest) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene)
        await happens(scene, interrupted(1, "unit"))
        await push(scene, NEXT)
        assert await happens(scene, interrupted(2, "unit", commit=NEXT)) == []
        assert await reruns(scene) == 2
        assert (await followed(scene)).rerun_head == NEXT


async def test_a_round_starts_at_once_if_a_check_has_really_failed(backend: BackendUnderTest) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene)
        [task] = await happens(scene, interrupted(1, "unit", failed=("lint",)))
        assert {each["name"] for each in task.payload["failing"]} == {"unit", "lint"}
        assert await reruns(scene) == 0


async def test_checks_of_a_commit_that_a_person_pushed_are_not_run_again(backend: BackendUnderTest) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene, branch_head=NEXT)
        assert await happens(scene, interrupted(1, "unit"), interrupted(2, "unit", commit=NEXT)) == []
        assert await reruns(scene) == 0


async def test_a_check_that_cannot_be_run_again_counts_as_failed(backend: BackendUnderTest) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene)
        await happens(scene, interrupted(1, "unit"))
        async with scene.bus.transaction() as transaction:
            record = await transaction.get(EVENTS.name, "evt-github-1")
            assert record
            await save(transaction, msgspec.convert(record.doc, ExternalEvent).as_new(), record)
            await transaction.publish(event_received("evt-github-1"))
        await scene.settle()
        assert len(await happens(scene)) == len(await rounds(scene)) == 1
