"""The timelines of the assignments of a followed pull request say how it is followed."""

from kingdom.court.explain.timeline_builder import build_timeline
from kingdom.court.explain.timeline_data import gather_data
from kingdom.court.explain.wording import state_of_followup
from tests.contract.backends import BackendUnderTest
from tests.integration.court.king.scene import opened
from tests.integration.court.king.test_rounds import FIRST, PULL, follow, general, happens, review


async def test_the_timelines_of_the_opener_and_of_a_round_show_the_rounds_and_what_waits(
    backend: BackendUnderTest,
) -> None:
    async with opened(backend, general()) as scene:
        await follow(scene, opened_by=FIRST, cost_usd=0.5)
        [task] = await happens(scene, review(1))
        await happens(scene, review(2))
        for about in (FIRST, task.id):
            operations, policies = backend.operations(scene.bus), scene.context.follow_policy
            timeline = build_timeline(await gather_data(scene.bus, operations, about, policies))
            [followup] = timeline.strands[0].followups
            assert state_of_followup(followup) == (
                f"{PULL} is followed until it is merged: waits for a round: review 1."
                " Rounds: review 1 of 5, checks 0 of 3, conflicts 0 of 2, for $0.50 of $20.00."
            )
