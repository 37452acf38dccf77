"""This version opens the stores of earlier versions, and finishes their open work."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from kingdom.bus import EFFECTS, Dispatcher, Event, LogCursor, RecordQuery, Transaction
from kingdom.court.documents import Assignment, AssignmentStatus, EventStatus
from kingdom.court.envoy.answers import open_questions
from kingdom.court.petitions.decision import PETITIONS, PetitionState
from kingdom.court.petitions.records import read_petition
from kingdom.court.records import load
from kingdom.standins.server import RunningServer
from kingdom.workflow import lifecycle
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus, WorkStatus
from kingdom.workflow.model.steps.operations import Auto
from kingdom.workflow.records import WORKFLOWS
from tests.compatibility.sample import GONE_HOST, HOST, Sample
from tests.contract.outside import Payment, calls
from tests.contract.scene import Scene, eventually
from tests.integration.court.general.scene import REPO, CourtScene
from tests.integration.court.petitions.scene import Scene as PetitionScene
from tests.integration.soldiers.host_scene import ANNA, APP
from tests.integration.soldiers.sources import files_of

STREAMS = ("free", "other", "line", "skipping", "host.retrying", "host.dead", "host.history", "host.lost")
Handled = dict[str, list[Any]]


async def finish(scene: Scene, payments: Path) -> Handled:
    """Redrive dead events, resume the paused stream, and handle everything. Return the payloads by stream or key."""
    dispatcher, handled = Dispatcher(), defaultdict[str, list[Any]](list)
    dispatcher.effect("Bill", Payment(payments))

    async def note(event: Event[dict[str, Any]], _transaction: Transaction) -> None:
        handled[event.envelope.partition_key or event.envelope.type].append(event.payload)

    for kind in ("Ping", "Both", "Step", "Skip"):
        dispatcher.reaction(kind)(note)
    # Every worker reaps expired leases.
    await scene.reap()
    async with scene.working(dispatcher, *STREAMS):
        await scene.operations.resume("other", actor=ANNA)
        await scene.operations.redrive([letter.position for letter in await scene.dead()], actor=ANNA)
        await eventually(lambda: not left(scene), "everything is handled")
    return handled


def left(scene: Scene) -> list[str]:
    """Return the streams of all events that wait or run."""
    return [row.stream for row in scene.picture.rows if row.open and row.stream in STREAMS]


async def dead(scene: Scene) -> dict[str, str | None]:
    """Return the streams of dead letters, each with its key."""
    return {letter.stream: letter.partition_key for letter in await scene.dead()}


def numbers(handled: Handled, key: str) -> list[int]:
    return [payload["number"] for payload in handled[key]]


async def effects(scene: Scene) -> dict[str, str]:
    async with scene.bus.transaction() as transaction:
        return {record.id: record.state for record in await transaction.find(RecordQuery(kind=EFFECTS.name))}


async def the_run(court: CourtScene, status: WorkflowStatus) -> Workflow:
    async with court.bus.transaction() as transaction:
        (record,) = await transaction.find(RecordQuery(kind=WORKFLOWS.name, state=status))
    return Workflow.read(record.doc)


async def test_the_backlog_is_handled_in_its_order_and_dead_letters_once_they_are_redriven(sample: Sample) -> None:
    async with sample.events() as scene:
        assert await dead(scene) == {"host.dead": None, "host.history": None, "line": "blocked"}
        assert scene.picture.keys["line", "blocked"] is not None
        assert [each.stream for each in await scene.operations.stats() if each.paused] == ["other"]
        handled = await finish(scene, sample.payments)
        scene.check()
        # It was cancelled while it ran.
        assert await dead(scene) == {"host.lost": None}
    assert numbers(handled, "blocked") == numbers(handled, "retrying") == [0, 1, 2]
    assert (numbers(handled, "waiting"), numbers(handled, "later")) == ([1, 2, 3], [0])
    assert numbers(handled, "passed") == [1, 0, 2]


async def test_records_are_listed_by_their_indexes(sample: Sample) -> None:
    async with sample.events() as scene, scene.bus.transaction() as transaction:
        (tally,) = await transaction.find(RecordQuery(kind="tally", index="owner", value="me"))
        assert (tally.id, tally.indexed) == ("t", {"owner": "me"})
        effects = await transaction.find(RecordQuery(kind=EFFECTS.name, index="owner", value="", descending=True))
        assert [record.id for record in effects] == ["invoice-3", "invoice-2", "invoice-1"]


async def test_the_log_is_read_in_its_order(sample: Sample) -> None:
    async with sample.events() as scene:
        logged = await scene.operations.read_log(LogCursor(), 1000)
    types = [each.entry.type for each in logged]
    assert types[-6:] == ["event.cancelled", "job.opened", "job.opened", "job.opened", "job.closed", "stream.paused"]
    assert types.index("WorkflowPaused") < types.index("event.detected") < types.index("task.needs_human")


async def test_an_open_effect_is_looked_up_and_made_once(sample: Sample) -> None:
    async with sample.events() as scene:
        assert await effects(scene) == {"invoice-1": "PREPARED", "invoice-2": "UNKNOWN", "invoice-3": "SENT"}
        (made,) = calls(sample.payments)
        await finish(scene, sample.payments)
        assert await effects(scene) == dict.fromkeys(("invoice-1", "invoice-2", "invoice-3"), "ACKED")
    assert calls(sample.payments).count(made) == 1
    assert len(calls(sample.payments)) == len(set(calls(sample.payments))) == 3


async def test_a_paused_run_continues_elsewhere_after_its_checkpoint(sample: Sample) -> None:
    async with sample.court() as (court, runs):
        paused = await the_run(court, WorkflowStatus.PAUSED)
        assert [work.status for work in paused.works] == [WorkStatus.COMPLETED, WorkStatus.PENDING]
        assert paused.placement
        assert paused.placement.host == GONE_HOST
        await lifecycle.resume(court.bus, paused.id, Auto(), actor=ANNA)
        completed = await runs.until(paused, WorkflowStatus.COMPLETED)
        assert completed.placement
        assert completed.placement.host == HOST
        assert files_of(runs.tree(completed)) == {
            "README.md": f"# {APP}\n",
            "one.txt": "by one\n",
            "two.txt": "by two\n",
        }


async def test_a_question_is_answered_and_its_session_continues(sample: Sample) -> None:
    async with sample.court() as (court, _):
        (waiting,) = [each for each in await court.assignments() if each.status is AssignmentStatus.NEEDS_HUMAN]
        session = (await the_run(court, WorkflowStatus.AWAITING)).works[0].agent.session
        await court.answer(waiting.id, "left")
        await court.until_event(waiting.event_id, EventStatus.COMPLETED)
        assert (await court.result(waiting.id))["summary"] == "Went left."
        run = await lifecycle.show(court.bus, waiting.workflow_id)
        assert (run.status, run.works[0].agent.session) == (WorkflowStatus.COMPLETED, session)


async def test_a_petition_is_approved_and_performed_once(
    sample: Sample, sites: tuple[RunningServer, RunningServer]
) -> None:
    async with sample.court() as (court, _):
        petitions = PetitionScene(sample.backend, court.bus, *sites)
        await petitions.people(petitions.github, "pull_request", repository=REPO, title="Add a fin", head="fin")
        async with court.bus.transaction() as transaction:
            (ask,) = [each for each in await open_questions(transaction) if each.petition]
            _, assignment = await load(transaction, Assignment, ask.assignment_id)
        asked = await court.record(PETITIONS.name, ask.petition)
        assert asked
        assert asked.state == PetitionState.REQUESTED
        async with petitions.performing():
            assert (await petitions.answer(read_petition(asked), "approve")).is_new
            await court.until_event(assignment.event_id, EventStatus.COMPLETED)
        performed = await court.record(PETITIONS.name, ask.petition)
        assert performed
        assert performed.state == PetitionState.PERFORMED
    assert [text.partition("\n")[0] for text in petitions.texts()] == ["Merge this at once."]


async def test_the_memory_of_a_general_is_shown_to_its_next_agent(sample: Sample) -> None:
    async with sample.court() as (court, _):
        event = await court.until_event(await court.send_event(), EventStatus.COMPLETED)
        run = await lifecycle.show(court.bus, f"wf-{event.routes[0].assignment_id}")
    instructions = run.works[0].definition.instructions
    assert "Reviews are short here." in instructions
    assert "The tests need a database." in instructions
