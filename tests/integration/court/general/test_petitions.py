"""An assignment ends only after its petitions: some wait for approval, others for earlier petitions."""

from kingdom.clock import utc_now
from kingdom.court.documents import EventStatus, MessageType
from kingdom.court.envoy.answers import PersonAnswer, open_questions, submit_answer
from kingdom.court.package import PetitionRule
from kingdom.court.petitions.decision import PetitionState
from kingdom.court.petitions.settlement import settle_petition
from kingdom.court.questions import HumanQuestion
from tests.integration.court.general.scene import CourtScene, reports, work
from tests.integration.running import eventually

SUCCESS = reports(status="success", summary="all is well")
COMMENT = {"petition": "github.comment", "body": {"body": "Merge this at once."}}


async def the_question(court: CourtScene) -> HumanQuestion:
    """Wait until a person is asked."""

    async def asks() -> list[HumanQuestion]:
        async with court.bus.transaction() as transaction:
            return await open_questions(transaction)

    async def is_asked() -> bool:
        return bool(await asks())

    await eventually(is_asked)
    (ask,) = await asks()
    return ask


async def say(court: CourtScene, ask: HumanQuestion, text: str) -> None:
    """Let anna answer as the command line and Slack do."""
    now = utc_now()
    given = PersonAnswer(source="cli", question_id=ask.id, text=text, person="anna", at=f"{now.timestamp():.6f}")
    async with court.bus.transaction() as transaction:
        assert (await submit_answer(transaction, given, now)).is_new


async def ids(court: CourtScene, kind: str, state: str) -> list[str]:
    """Return the ids of the petitions of a kind that have reached a state, from the log."""
    logged = await court.logged(f"petition.{state}")
    return [str(data["petition_id"]) for _, data in logged if data["kind"] == kind]


async def the_petition(court: CourtScene, kind: str, state: str) -> str:
    async def is_there() -> bool:
        return bool(await ids(court, kind, state))

    await eventually(is_there)
    (petition_id,) = await ids(court, kind, state)
    return petition_id


async def the_run_is_over(court: CourtScene) -> None:
    async def has_completed() -> bool:
        (task,) = await court.assignments()
        run = await court.record("workflow", f"wf-{task.id}")
        return run is not None and run.state == "COMPLETED" and not await court.held()

    await eventually(has_completed)


async def test_an_assignment_waits_for_the_approval_of_a_person(court: CourtScene) -> None:
    court.has(work("look", COMMENT, SUCCESS), petitions=(PetitionRule(kind="github.comment", approval=True),))
    event_id = await court.send_event()
    ask = await the_question(court)
    await the_run_is_over(court)
    assert (await court.event(event_id)).status is EventStatus.DISPATCHED
    assert await ids(court, "github.comment", "granted") == []
    await say(court, ask, "approve")
    petition_id = await the_petition(court, "github.comment", "granted")
    async with court.bus.transaction() as transaction:
        await settle_petition(
            transaction, petition_id, PetitionState.PERFORMED, response={"url": "https://example.org/1"}
        )
    await court.until_event(event_id, EventStatus.COMPLETED)
    record = await court.record("petition", petition_id)
    assert record is not None
    assert (record.state, record.doc["decided_by"]) == ("performed", "anna")


async def test_a_person_who_rejects_a_petition_does_not_fail_the_assignment(court: CourtScene) -> None:
    court.has(work("look", COMMENT, SUCCESS), petitions=(PetitionRule(kind="github.comment", approval=True),))
    event_id = await court.send_event()
    await say(court, await the_question(court), "reject")
    await court.until_event(event_id, EventStatus.COMPLETED)
    ((_, refused),) = await court.logged("petition.refused")
    assert (refused["reason"], refused["decided_by"]) == ("anna rejected it", "anna")
    (task,) = await court.assignments()
    run = await court.record("workflow", f"wf-{task.id}")
    assert run is not None
    verdict = await court.record("verdict", run.doc["works"][0]["petitions"][0]["id"])
    assert verdict is not None
    assert verdict.doc == {"granted": False, "reason": "anna rejected it"}


async def test_a_petition_and_a_run_can_ask_at_the_same_time(court: CourtScene) -> None:
    court.has(
        work("look", COMMENT, {"ask": "Left or right?", "choices": ["left", "right"]}, SUCCESS),
        petitions=(PetitionRule(kind="github.comment", approval=True),),
    )
    event_id = await court.send_event()

    async def both_ask() -> bool:
        async with court.bus.transaction() as transaction:
            return len(await open_questions(transaction)) == 2

    await eventually(both_ask)
    async with court.bus.transaction() as transaction:
        asks = {bool(ask.petition): ask for ask in await open_questions(transaction)}
    await say(court, asks[True], "reject")
    await the_petition(court, "github.comment", "refused")
    assert (await court.assignments())[-1].status == "needs_human"
    await court.answer(asks[False].id, "left")
    await court.until_event(event_id, EventStatus.COMPLETED)


async def test_a_message_about_a_pull_request_is_sent_once_the_pull_request_is_open(court: CourtScene) -> None:
    court.has(
        work(
            "build",
            {"petition": "github.pull_request", "body": {"title": "Repair the fin"}},
            {"petition": "slack.message", "body": {"text": "I have opened it."}},
            SUCCESS,
        ),
        work("check", SUCCESS),
        petitions=(PetitionRule(kind="github.pull_request"), PetitionRule(kind="slack.message")),
        result_people=("*",),
    )
    event_id = await court.send_event()
    pull_request = await the_petition(court, "github.pull_request", "granted")
    await the_run_is_over(court)
    assert await court.messages(MessageType.NOTIFICATION) == []
    assert (await court.event(event_id)).status is EventStatus.DISPATCHED
    async with court.bus.transaction() as transaction:
        await settle_petition(
            transaction, pull_request, PetitionState.PERFORMED, response={"url": "https://example.org/2"}
        )
    await court.until_event(event_id, EventStatus.COMPLETED)
    assert await court.messages(MessageType.NOTIFICATION) == ["I have opened it."]
