"""The petitions of one assignment are performed in order, and their agents learn the decisions."""

from datetime import timedelta

import pytest

from kingdom.clock import utc_now
from kingdom.court.package import GeneralPolicy, PetitionRule
from kingdom.court.petitions.decision import Petition, PetitionState
from kingdom.court.petitions.settlement import fail_overdue_petitions
from kingdom.court.records import MESSAGES
from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.registry import create_git
from kingdom.workflow.verdicts import PetitionVerdict
from tests.integration.court.petitions.scene import ALLOWED, REPO, ROOT, Scene
from tests.unit.workflow.model.host import petition as spoken
from tests.unit.workflow.model.scene import APP, Run, started, template, work

REQUESTED, GRANTED = PetitionState.REQUESTED, PetitionState.GRANTED
PERFORMED, FAILED, REFUSED = PetitionState.PERFORMED, PetitionState.FAILED, PetitionState.REFUSED
COMMIT = "c0ffee" + "0" * 34


def hours(hours: float, *kinds: str) -> GeneralPolicy:
    return GeneralPolicy(petitions=tuple(PetitionRule(kind=kind, at_most=3, expires_hours=hours) for kind in kinds))


@pytest.fixture
async def run(scene: Scene) -> Run:
    """A run whose first agent is running."""
    git = Git(id="git-app", name="app", url=f"git@github.com:{REPO}.git", repo=REPO)
    await create_git(scene.bus, git, actor="anna")
    run = started(template(work("build"), work("check"), git_refs=(APP,)))
    run.receive(spoken(run.until(commands.SendQuery), "p1"))
    return run


async def pull_request(scene: Scene, run: Run, policy: GeneralPolicy = ALLOWED) -> Petition:
    body = {"title": "Repair the fin", "body": "It flies."}
    return await scene.make_petition("github.pull_request", body, run=run.workflow, name="p1", policy=policy)


def takes_its_checkpoint(run: Run) -> None:
    run.until(commands.StartAgent, work_index=1)
    run.workflow.checkpoints[0].commits[run.workflow.work_trees[0].id] = COMMIT


async def test_a_comment_does_not_overtake_the_pull_request_that_it_mentions(scene: Scene, run: Run) -> None:
    async with scene.performing():
        first = await pull_request(scene, run)
        second = await scene.comment("I have opened a pull request.", run=run.workflow)
        assert (first.state, second.state) == (REQUESTED, REQUESTED)
        await scene.check_waiting(run.workflow)
        assert (await scene.now(second)).state is REQUESTED
        takes_its_checkpoint(run)
        await scene.check_waiting(run.workflow)
        opened, reported = await scene.until(first, PERFORMED), await scene.until(second, PERFORMED)
    assert opened.ended_at is not None
    assert reported.ended_at is not None
    assert opened.ended_at < reported.ended_at
    assert [each.id for each in await scene.petitions()] == [first.id, second.id]


async def test_a_message_waits_for_earlier_petitions_to_other_systems(scene: Scene) -> None:
    first = await scene.comment("First.")
    second = await scene.make_petition("slack.message", {"text": "Second."})
    third = await scene.comment("Third.")
    assert (first.state, second.state, third.state) == (GRANTED, REQUESTED, REQUESTED)
    assert await scene.records(MESSAGES.name) == []
    async with scene.performing():
        await scene.until(first, PERFORMED)
        assert len(await scene.waiting()) == 0
        await scene.check_waiting()
        assert (await scene.now(second)).state is PERFORMED
        await scene.until(third, PERFORMED)
    assert len(await scene.records(MESSAGES.name)) == 1


async def test_a_refused_or_failed_petition_does_not_delay_the_others(scene: Scene) -> None:
    refused = await scene.make_petition("github.merge", {})
    failed = await scene.make_petition("jira.transition", {"to": "Flying"})
    async with scene.performing():
        await scene.until(failed, FAILED)
        reported = await scene.make_petition("slack.message", {"text": "It does not fly."})
    assert (refused.state, reported.state) == (REFUSED, PERFORMED)


@pytest.mark.both_stores
async def test_petitions_are_performed_in_order_and_none_is_forgotten(scene: Scene) -> None:
    many = GeneralPolicy(
        petitions=tuple(PetitionRule(kind=kind, at_most=9) for kind in ("github.comment", "slack.message"))
    )
    asked: list[Petition] = []
    async with scene.performing(), scene.caring():
        for number in range(5):
            asked.append(await scene.comment(f"Comment {number}.", policy=many))
            asked.append(await scene.make_petition("slack.message", {"text": f"Message {number}."}, policy=many))
        done = [await scene.until(each, PERFORMED) for each in asked]
    ends = [each.ended_at for each in done if each.ended_at]
    assert len(ends) == 10
    assert ends == sorted(ends)


async def test_a_waiting_petition_is_always_checked_again(scene: Scene) -> None:
    await scene.comment("First.")
    assert await scene.settled() == []
    await scene.make_petition("slack.message", {"text": "Second."})
    assert await scene.settled() == [("PetitionsDue", ROOT)]


async def test_an_agent_gets_a_verdict_for_each_name_of_its_petition(scene: Scene, run: Run) -> None:
    await scene.comment("Well done.", name="t-a1-p1")
    await scene.comment("Well done.", name="t-a2-p1")
    await scene.make_petition("github.merge", {}, name="t-a1-p2")
    await pull_request(scene, run)
    assert await scene.verdict("t-a1-p1") == await scene.verdict("t-a2-p1") == PetitionVerdict(granted=True)
    refused = await scene.verdict("t-a1-p2")
    assert refused is not None
    assert (refused.granted, "not a kind of petition" in refused.reason) == (False, True)
    waits = await scene.verdict("p1")
    assert waits is not None
    assert (waits.granted, bool(waits.reason)) == (True, True)
    assert await scene.verdict("t-a9-p9") is None


async def test_an_agent_learns_about_a_later_refusal(scene: Scene) -> None:
    await scene.comment("Well done.", name="t-a1-p1", policy=hours(0.5, "github.comment"))
    async with scene.bus.transaction() as transaction:
        assert await fail_overdue_petitions(transaction, utc_now() + timedelta(hours=4)) == 1
    verdict = await scene.verdict("t-a1-p1")
    assert verdict is not None
    assert (verdict.granted, "outcome was still unknown" in verdict.reason) == (False, True)


async def test_a_petition_after_its_deadline_is_not_performed(scene: Scene, run: Run) -> None:
    first = await pull_request(scene, run, hours(1, "github.pull_request"))
    second = await scene.comment("Meanwhile.", run=run.workflow)
    async with scene.bus.transaction() as transaction:
        assert await fail_overdue_petitions(transaction, utc_now() + timedelta(minutes=50)) == 0
    async with scene.bus.transaction() as transaction:
        assert await fail_overdue_petitions(transaction, utc_now() + timedelta(minutes=70)) == 1
    takes_its_checkpoint(run)
    await scene.check_waiting(run.workflow)
    late, next_one = await scene.now(first), await scene.now(second)
    assert (late.state, next_one.state) == (REFUSED, GRANTED)
    assert late.reason == "it could not be performed within the time that the policy allows"
    assert ("PetitionSettled", ROOT) in await scene.settled()


async def test_an_expired_petition_is_not_sent_when_github_is_reachable_again(scene: Scene) -> None:
    scene.trouble(scene.github, kind="refuse", method="POST", status=429, retry_after=1)
    async with scene.performing():
        asked = await scene.comment(policy=hours(0.5 / 3600, "github.comment"))
        failed = await scene.until(asked, FAILED)
        again = await scene.comment()
        await scene.until(again, PERFORMED)
    assert failed.reason == "it could not be performed within the time that the policy allows"
    assert again.id == asked.id
    assert len(scene.texts()) == 1


async def test_a_branch_that_is_not_the_runs_own_is_never_pushed(scene: Scene, run: Run) -> None:
    run.workflow.work_trees[0].branch = "main"
    asked = await pull_request(scene, run)
    assert (asked.state, "is not a branch of this run" in asked.reason) == (REFUSED, True)
    run.workflow.work_trees[0].branch = "kingdom/wf-12/another-run"
    asked = await pull_request(scene, run)
    assert asked.state is REFUSED
    async with scene.performing():
        takes_its_checkpoint(run)
        await scene.check_waiting(run.workflow)
    assert scene.made(scene.github, "POST git ref") == 0
