"""Timelines of a real run with a question, a killed agent, a retry and petitions, built only from the store."""

import msgspec
import pytest

from kingdom.chronicle.catalog import log_event
from kingdom.chronicle.events import SessionRestarted
from kingdom.court.documents import AssignmentStatus, EventStatus
from kingdom.court.explain.timeline import MomentKind, QueryOutcome, Timeline
from kingdom.court.explain.timeline_builder import build_timeline
from kingdom.court.explain.timeline_data import gather_data
from kingdom.court.package import PetitionRule
from kingdom.errors import NotFound
from tests.integration.court.general.scene import CourtScene, reports, work

SUCCESS = reports(status="success", summary="all is well")
TITLE = "Mend the door"
ONE_BACKEND = pytest.mark.parametrize("backend", ["files"], indirect=True)
MESSAGE = {"petition": "slack.message", "body": {"text": "hello"}}
COMMENT = {"petition": "github.comment", "body": {"body": "hello"}}


async def timeline_of(court: CourtScene, about: str) -> Timeline:
    return build_timeline(await gather_data(court.bus, court.operations, about, lambda _: None))


async def story(court: CourtScene) -> tuple[str, str]:
    """Cause every kind of moment of a timeline, and return the event and its assignment."""
    court.has(
        work(
            "look", MESSAGE, COMMENT, {"ask": "Left or right?", "choices": ["left", "right"]}, {"cost": 0.25}, SUCCESS
        ),
        work("mend", {"crash": 3, "first_time_only": True}, {"cost": 0.5}, SUCCESS),
        retries=1,
        petitions=(PetitionRule(kind="slack.message"),),
    )
    event_id = await court.send_event(title=TITLE)
    waiting = await court.until_assignment(AssignmentStatus.NEEDS_HUMAN)
    async with court.bus.transaction() as transaction:
        await log_event(transaction, SessionRestarted(target="king", pid=1), "chamberlain")
    await court.answer(waiting.id, "left")
    await court.until_event(event_id, EventStatus.COMPLETED)
    return event_id, waiting.id


async def test_one_timeline_shows_everything_from_the_event_to_the_result(court: CourtScene) -> None:
    event_id, assignment_id = await story(court)
    timeline = await timeline_of(court, assignment_id)
    kinds = [moment.kind for moment in timeline.moments]
    assert kinds[0] is MomentKind.EVENT
    assert kinds[-1] is MomentKind.RESULT
    order = [
        MomentKind.DECISION,
        MomentKind.PETITION,
        MomentKind.QUESTION,
        MomentKind.ANSWER,
        MomentKind.CHECKPOINT,
        MomentKind.CRASH,
        MomentKind.RETRY,
    ]
    firsts = [kinds.index(kind) for kind in order if kind is not MomentKind.CRASH]
    assert firsts == sorted(firsts)
    words = {moment.kind: moment for moment in timeline.moments}
    assert words[MomentKind.DECISION].why == "its rule gen-test#1 matches, priority normal"
    assert words[MomentKind.QUESTION].why == "Left or right?"
    assert "left" in words[MomentKind.ANSWER].why
    assert "acme-app" in words[MomentKind.CHECKPOINT].why
    crashes = [moment.what for moment in timeline.moments if moment.kind is MomentKind.CRASH]
    # A host with a late heartbeat may count as lost in the meantime.
    assert {"restarted king", "the agent of mend ended unexpectedly"} <= set(crashes)
    assert (timeline.crashes, timeline.retries, timeline.status) == (len(crashes), 1, "completed")
    assert timeline.event
    assert (timeline.event.id, timeline.event.subject) == (event_id, TITLE)


@ONE_BACKEND
async def test_the_sums_of_time_and_money_are_right(court: CourtScene) -> None:
    _, assignment_id = await story(court)
    timeline = await timeline_of(court, assignment_id)
    (strand,) = timeline.strands
    look, mend = strand.works
    assert [query.outcome for query in look.queries] == [QueryOutcome.ASKED, QueryOutcome.ANSWERED]
    assert mend.queries[0].outcome is QueryOutcome.LOST
    assert mend.queries[0].reconciled == "UNFINISHED"
    assert mend.queries[-1].outcome is QueryOutcome.ANSWERED
    assert (look.cost_usd, mend.cost_usd, timeline.cost_usd) == (0.25, 0.5, 0.75)
    assert sum(moment.cost_usd or 0 for moment in timeline.moments if moment.kind is MomentKind.QUERY) == 0.75
    (question,) = strand.questions
    assert (question.question, question.answer) == ("Left or right?", "left")
    assert question.seconds is not None
    assert {output.kind: output.state for output in strand.outputs} == {
        "slack.message": "performed",
        "github.comment": "refused",
    }
    assert (strand.summary, strand.status, strand.rule) == ("all is well", "completed", "gen-test#1")
    assert timeline.missing == ()


@ONE_BACKEND
async def test_event_assignment_resumption_and_run_lead_to_the_same_timeline(court: CourtScene) -> None:
    event_id, assignment_id = await story(court)
    whole = await timeline_of(court, event_id)
    resumed = whole.strands[0].resumed_as[0]
    for about in (assignment_id, resumed, f"wf-{assignment_id}"):
        other = await timeline_of(court, about)
        assert msgspec.structs.replace(other, about=event_id) == whole


async def test_an_unwanted_event_is_reported_with_the_reason(court: CourtScene) -> None:
    event_id = await court.send_event()
    await court.until_event(event_id, EventStatus.COMPLETED)
    timeline = await timeline_of(court, event_id)
    assert [moment.kind for moment in timeline.moments] == [MomentKind.EVENT, MomentKind.DECISION]
    assert timeline.moments[-1].why == "no General subscribes to it"
    assert (timeline.status, timeline.strands) == ("unrouted", ())
    assert timeline.seconds is not None


@ONE_BACKEND
async def test_a_run_that_fails_is_reported_with_its_reasons(court: CourtScene) -> None:
    court.has(work("look", SUCCESS), work("fail", {"fail": "out of luck"}))
    await court.until_event(await court.send_event(), EventStatus.FAILED)
    (task,) = await court.assignments()
    timeline = await timeline_of(court, task.id)
    failures = [moment.why for moment in timeline.moments if moment.kind is MomentKind.FAILURE]
    assert "out of luck" in failures
    assert timeline.moments[-1].kind in (MomentKind.RESULT, MomentKind.RUN)
    assert timeline.status == "failed"


@ONE_BACKEND
@pytest.mark.parametrize("about", ["evt-github-unknown", "task-20200101-999", "wf-nothing"])
async def test_an_unknown_id_is_reported_with_the_next_step(court: CourtScene, about: str) -> None:
    with pytest.raises(NotFound, match="kingdom event list"):
        await timeline_of(court, about)
