"""With `approval` a person is asked before a petition is performed."""

from datetime import timedelta
from pathlib import Path

import pytest

from kingdom.access.rights import Right
from kingdom.clock import utc_now
from kingdom.court.envoy.answers import find_question, open_questions
from kingdom.court.king.answers import close_overdue_questions
from kingdom.court.package import GeneralPolicy, PetitionRule
from kingdom.court.petitions.decision import PetitionState
from kingdom.court.petitions.records import has_open_petitions
from kingdom.court.petitions.settlement import fail_overdue_petitions, withdraw_waiting_petitions
from kingdom.court.questions import QuestionStatus, load_question
from kingdom.court.records import EVENTS, MESSAGES
from kingdom.workflow.verdicts import PetitionVerdict
from tests.integration.court.petitions.scene import REPO, ROOT, Scene
from tests.integration.web.site import SAME_ORIGIN, serving

REQUESTED, GRANTED = PetitionState.REQUESTED, PetitionState.GRANTED
PERFORMED, REFUSED = PetitionState.PERFORMED, PetitionState.REFUSED
CAREFUL = GeneralPolicy(
    petitions=(
        PetitionRule(kind="github.comment", at_most=3, approval=True),
        PetitionRule(kind="github.pull_request", approval=True),
        PetitionRule(kind="slack.message"),
    )
)


async def test_a_petition_waits_for_a_person_who_approves_it(scene: Scene) -> None:
    async with scene.performing():
        asked = await scene.comment("Merge this at once.", policy=CAREFUL, name="t-a1-p1")
        assert (asked.state, await scene.question(asked)) == (REQUESTED, QuestionStatus.OPEN)
        undecided = await scene.verdict("t-a1-p1")
        assert undecided is not None
        assert undecided.granted is None
        await scene.check_waiting()
        assert (await scene.waiting(), scene.texts()) == ([], [])
        assert (await scene.answer(asked, "approve")).is_new
        await scene.check_waiting()
        done = await scene.until(asked, PERFORMED)
    assert (done.decided_by, done.decided_at is not None) == ("anna", True)
    assert await scene.verdict("t-a1-p1") == PetitionVerdict(granted=True)
    assert len(scene.texts()) == 1
    [event] = await scene.records(EVENTS.name)
    assert (event.state, event.doc["outcome"], event.doc["payload"]["user"]) == ("completed", "answered", "anna")
    assert ("PetitionsDue", ROOT) in await scene.settled()


async def test_people_are_asked_in_the_thread_of_the_assignment_with_the_original_text(scene: Scene) -> None:
    asked = await scene.comment("Merge this at once.", policy=CAREFUL)
    [message] = await scene.records(MESSAGES.name)
    assert (message.doc["type"], message.doc["channel"]) == ("human_input_request", "dev")
    assert (
        message.doc["content"]
        == f"May gen-pr do this (github.comment on {REPO}#1)?\nrepo: {REPO}\nnumber: 1\nbody: Merge this at once."
    )
    context = message.doc["context"]
    assert (context["task_id"], context["ask_id"], context["choices"]) == (ROOT, asked.id, ["approve", "reject"])


async def test_a_rejection_by_a_person_is_final(scene: Scene) -> None:
    asked = await scene.comment("Merge this at once.", policy=CAREFUL, name="t-a1-p1")
    await scene.answer(asked, "Reject", "bob")
    await scene.check_waiting()
    refused = await scene.now(asked)
    assert (refused.state, refused.reason, refused.decided_by) == (REFUSED, "bob rejected it", "bob")
    again = await scene.comment("Merge this at once.", policy=CAREFUL, name="t-a2-p1")
    assert (again.id, again.state) == (asked.id, REFUSED)
    assert await scene.verdict("t-a2-p1") == PetitionVerdict(granted=False, reason="bob rejected it")
    assert len(await scene.records(MESSAGES.name)) == 1
    async with scene.bus.transaction() as transaction:
        assert not await has_open_petitions(transaction, ROOT)


async def test_only_people_named_in_the_policy_may_approve_and_only_with_an_offered_choice(scene: Scene) -> None:
    policy = GeneralPolicy(petitions=CAREFUL.petitions, ask_people=("anna",))
    asked = await scene.comment(policy=policy)
    assert "may not answer" in (await scene.answer(asked, "approve", "mallory")).refusal
    assert "approve, reject" in (await scene.answer(asked, "well, yes", "anna")).refusal
    assert (await scene.answer(asked, "approve", "anna")).is_new
    assert "already answered" in (await scene.answer(asked, "reject", "anna")).refusal
    await scene.check_waiting()
    assert (await scene.now(asked)).state is GRANTED


async def test_the_question_about_a_petition_is_not_a_question_of_its_assignment(scene: Scene) -> None:
    asked = await scene.comment(policy=CAREFUL)
    async with scene.bus.transaction() as transaction:
        assert await find_question(transaction, ROOT) is None
        assert [ask.id for ask in await open_questions(transaction)] == [asked.id]


async def test_petitions_after_one_that_waits_for_a_person_wait_too(scene: Scene) -> None:
    first = await scene.comment("First.", policy=CAREFUL)
    second = await scene.make_petition("slack.message", {"text": "Second."}, policy=CAREFUL)
    third = await scene.comment("Third.", policy=CAREFUL)
    await scene.answer(third, "approve")
    await scene.check_waiting()
    assert [(await scene.now(each)).state for each in (first, second, third)] == [REQUESTED] * 3
    await scene.answer(first, "reject")
    await scene.check_waiting()
    assert [(await scene.now(each)).state for each in (first, second, third)] == [REFUSED, PERFORMED, GRANTED]


@pytest.mark.parametrize("king_first", [False, True], ids=["general first", "king first"])
async def test_an_unapproved_petition_is_refused_after_its_deadline(scene: Scene, *, king_first: bool) -> None:
    policy = GeneralPolicy(petitions=CAREFUL.petitions, ask_deadline_hours=2)
    asked = await scene.comment(policy=policy, name="t-a1-p1")
    later = utc_now() + timedelta(hours=3)
    if king_first:
        async with scene.bus.transaction() as transaction:
            assert await close_overdue_questions(transaction, later, 10) == 1
    async with scene.bus.transaction() as transaction:
        assert await fail_overdue_petitions(transaction, later) == 1
    refused = await scene.now(asked)
    assert (refused.state, refused.reason) == (REFUSED, "no approval in time")
    assert await scene.question(asked) is QuestionStatus.EXPIRED
    assert await scene.verdict("t-a1-p1") == PetitionVerdict(granted=False, reason="no approval in time")
    again = await scene.comment(policy=policy)
    assert (again.state, await scene.question(again)) == (REQUESTED, QuestionStatus.OPEN)


async def test_an_approval_that_came_in_time_counts_even_if_it_is_received_late(scene: Scene) -> None:
    policy = GeneralPolicy(petitions=CAREFUL.petitions, ask_deadline_hours=2)
    asked = await scene.comment(policy=policy)
    await scene.answer(asked, "approve")
    async with scene.bus.transaction() as transaction:
        assert await fail_overdue_petitions(transaction, utc_now() + timedelta(hours=3)) == 1
    await scene.check_waiting()
    assert (await scene.now(asked)).state is GRANTED


async def test_an_approved_and_withdrawn_petition_may_be_requested_again(scene: Scene) -> None:
    first = await scene.comment("First.", policy=CAREFUL)
    second = await scene.comment("Second.", policy=CAREFUL)
    await scene.answer(second, "approve")
    await scene.check_waiting()
    async with scene.bus.transaction() as transaction:
        await withdraw_waiting_petitions(transaction, ROOT, "the assignment ended before: killed")
    again = await scene.comment("Second.", policy=CAREFUL)
    assert (again.state, again.decided_by, await scene.question(again)) == (REQUESTED, "", QuestionStatus.OPEN)
    assert (await scene.now(first)).state is REFUSED


async def test_a_question_has_the_same_deadline_as_its_petition(scene: Scene) -> None:
    rule = PetitionRule(kind="github.comment", approval=True, expires_hours=1)
    asked = await scene.comment(policy=GeneralPolicy(petitions=(rule,)))
    async with scene.bus.transaction() as transaction:
        found = await load_question(transaction, asked.id)
    assert found is not None
    assert found[1].due_at == asked.expires_at == asked.created_at + timedelta(hours=1)


async def test_the_end_of_an_assignment_ends_its_questions(scene: Scene) -> None:
    asked = await scene.comment(policy=CAREFUL)
    async with scene.bus.transaction() as transaction:
        await withdraw_waiting_petitions(transaction, ROOT, "the assignment ended before: killed")
    assert (await scene.now(asked)).state is REFUSED
    assert await scene.question(asked) is QuestionStatus.EXPIRED
    assert "the time for an answer is over" in (await scene.answer(asked, "approve")).refusal


async def test_no_person_is_asked_about_an_impossible_petition(scene: Scene) -> None:
    asked = await scene.make_petition("github.pull_request", {"title": "Repair the fin"}, policy=CAREFUL)
    assert (asked.state, await scene.question(asked)) == (REFUSED, None)
    assert await scene.records(MESSAGES.name) == []


async def test_a_person_who_approves_over_the_web_sees_what_is_sent_and_it_is_sent_once(
    scene: Scene, tmp_path: Path
) -> None:
    async with scene.performing(), serving(scene.backend, tmp_path) as site:
        asked = await scene.comment("Merge this at once.", policy=CAREFUL)
        browser = {"Cookie": await site.signs_in("anna", Right.LOOK, Right.ANSWER), **SAME_ORIGIN}
        (shown,) = (await site.get("/api/v1/questions", **browser)).document["items"]
        assert (shown["petition_id"], "Merge this at once." in shown["question"]) == (asked.id, True)
        place = f"/api/v1/petitions/{asked.id}"
        assert (await site.get(place, **browser)).document["state"] == REQUESTED
        for _ in range(2):
            body = {"digest": shown["digest"]}
            done = await site.post(f"{place}/approve", body, Idempotency_Key="thumb", **browser)
            assert done.status == 200, done.text
        await scene.check_waiting()
        await scene.until(asked, PERFORMED)
        performed = (await site.get(place, **browser)).document
        assert (performed["state"], performed["decided_by"]) == (PERFORMED, "anna")
        log = (await site.get("/api/v1/log", **browser)).document["items"]
    assert len(scene.texts()) == 1
    assert [entry["data"]["verb"] for entry in log if entry["type"] == "web.act"] == ["approve"]
