"""An act happens once for its key, also if the server is killed, and the log says who did it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from kingdom.access.rights import Right
from kingdom.actions.definitions import write_works
from kingdom.backends.files import FilesBus, FilesOperations
from kingdom.bus import Bus, LogCursor, Operations
from kingdom.bus.operations import DeadFilter, Situation
from kingdom.court.questions import QuestionStatus, load_question, save_question
from kingdom.court.streams import EVENT_STREAM, event_received
from kingdom.workflow import lifecycle, templates
from kingdom.workflow.model.resources.mcp_server import McpServer, McpTransport
from kingdom.workflow.model.run.workflow import RUN_PREFIX, Workflow
from kingdom.workflow.records import load_workflow
from kingdom.workflow.registry import register_mcp_server
from kingdom.workflow.template_file import read_template
from tests.acceptance.sample_store import TASK, TEMPLATE
from tests.contract.backends import BACKENDS, BackendUnderTest
from tests.integration.web.people import approval, question
from tests.integration.web.site import Site, serving

STREAM = EVENT_STREAM.name
QUESTION = {"taskId": "w1-t1", "text": "Left or right?"}
pytestmark = pytest.mark.both_stores


@pytest.fixture
async def site(backend: BackendUnderTest, tmp_path: Path) -> AsyncIterator[Site]:
    async with serving(backend, tmp_path) as site:
        yield site


async def log_of(site: Site) -> list[Any]:
    return [logged.entry for logged in await site.operations.read_log(LogCursor(), 1000)]


async def make_run(bus: Bus) -> Workflow:
    template = await templates.create_template(bus, read_template(TEMPLATE, "greet.yaml"), actor="tester")
    return await lifecycle.create(bus, template.id, actor="tester", name="By hand")


async def run_of_general(site: Site, state: dict[str, Any]) -> Workflow:
    """Create a run of gen-hello with some fields of its record replaced."""
    run = await make_run(site.bus)
    async with site.bus.transaction() as transaction:
        record, _ = await load_workflow(transaction, run.id)
        doc = {**record.doc, "general": "gen-hello", **state}
        await transaction.put(record.replace(state=state.get("status", record.state), doc=doc))
    return run


async def make_dead_letters(site: Site, count: int) -> list[str]:
    """Publish events and cancel them, so that they become dead letters. Return their ids."""
    letters = [event_received(f"evt-gone-{number}") for number in range(count)]
    await site.bus.publish(*letters)
    for letter in letters:
        await site.operations.cancel(letter.event_id, STREAM, actor="tester")
    return [str(letter.event_id) for letter in letters]


async def test_an_act_with_a_known_key_returns_the_first_response_and_does_nothing(site: Site) -> None:
    program = site.bearing(await site.token("ci"))
    first = await program.post("/api/v1/events", {"type": "demo.sent"}, Idempotency_Key="k1")
    again = await program.post("/api/v1/events", {"type": "demo.sent"}, Idempotency_Key="k1")
    assert again.document == first.document
    assert len((await program.get("/api/v1/events")).document["items"]) == 1
    other = await program.post("/api/v1/events", {"type": "demo.other"}, Idempotency_Key="k1")
    assert (other.status, "Idempotency-Key" in other.document["message"]) == (409, True)
    # Keys belong to their sender, and without a key each request counts.
    someone = site.bearing(await site.token("someone"))
    assert (await someone.post("/api/v1/events", {"type": "demo.sent"}, Idempotency_Key="k1")).status == 200
    await program.post("/api/v1/events", {"type": "demo.sent"})
    assert len((await program.get("/api/v1/events")).document["items"]) == 3


async def test_an_act_that_is_sent_twice_at_the_same_time_happens_once(site: Site) -> None:
    program = site.bearing(await site.token("ci"))
    key = str(uuid4())
    replies = await asyncio.gather(
        *(program.post("/api/v1/events", {"type": "demo.sent"}, Idempotency_Key=key) for _ in range(5))
    )
    assert {reply.status for reply in replies} == {200}
    assert len({reply.document["id"] for reply in replies}) == 1


async def test_a_refused_act_leaves_its_key_unused(site: Site) -> None:
    program = site.bearing(await site.token("ci"))
    run = await make_run(site.bus)
    refused = await program.post(f"/api/v1/runs/{run.id}/pause", Idempotency_Key="k")
    assert (refused.status, refused.document["code"]) == (409, "illegal_transition")
    assert "allowed now" in refused.document["message"]
    done = await program.post(f"/api/v1/runs/{run.id}/cancel", Idempotency_Key="k")
    assert (done.status, done.document["status"]) == (200, "CANCELLED")


async def test_every_act_is_a_log_entry_with_the_person(site: Site) -> None:
    program = site.bearing(await site.token("ci"))
    run = await make_run(site.bus)
    await program.post(f"/api/v1/runs/{run.id}/cancel")
    await program.post(f"/api/v1/bus/streams/{STREAM}/pause", {"reason": "a look"})
    entries = [entry for entry in await log_of(site) if entry.type == "web.act"]
    assert [(entry.actor, entry.data["verb"], entry.aggregate_id) for entry in entries] == [
        ("ci@web", "cancel", run.id),
        ("ci@web", "pause", STREAM),
    ]
    shown = (await program.get(f"/api/v1/runs/{run.id}/log")).document["items"]
    assert {entry["actor"] for entry in shown if entry["type"] == "web.act"} == {"ci@web"}
    assert any(entry["type"] == "WorkflowCancelled" and entry["actor"] == "ci@web" for entry in shown)


async def test_streams_and_dead_letters_are_operated_with_the_shapes_of_the_command_line(site: Site) -> None:
    program = site.bearing(await site.token("ci"))
    first, second, third = await make_dead_letters(site, 3)
    paused = await program.post(f"/api/v1/bus/streams/{STREAM}/pause", {"reason": "a look"})
    assert paused.document == {"stream": STREAM, "reason": "a look", "actor": "ci@web"}
    (stream,) = (await program.get("/api/v1/bus/streams")).document["items"]
    assert (stream["stream"], stream["dead"], stream["paused"]) == (STREAM, 3, "a look")
    assert (await program.post(f"/api/v1/bus/streams/{STREAM}/resume")).document["wasPaused"]
    letters = (await program.get("/api/v1/bus/dead-letters?limit=2")).document
    assert [each["eventId"] for each in letters["items"]] == [first, second]
    rest = (await program.get(f"/api/v1/bus/dead-letters?after={letters['next']}")).document
    assert ([each["eventId"] for each in rest["items"]], rest["next"]) == ([third], None)
    await program.post(f"/api/v1/bus/dead-letters/{first}/patch", {"payload": {"number": 70}})
    (details,) = (await program.get(f"/api/v1/bus/dead-letters/{first}")).document["items"]
    assert details["envelope"]["payload"] == {"number": 70}
    gone = await program.post(f"/api/v1/bus/dead-letters/{second}/discard", {"reason": "a test"})
    assert gone.document == {"discarded": [{"eventId": second, "stream": STREAM}]}
    dry = await program.post("/api/v1/bus/redrive", {"everything": True, "dryRun": True})
    assert (dry.document["dryRun"], dry.document["matching"]) == (True, 2)
    driven = await program.post("/api/v1/bus/redrive", {"events": [first], "stopAfter": 0})
    assert (driven.document["redriven"], driven.document["events"]) == (1, [{"eventId": first, "stream": STREAM}])
    (situation,) = (await program.get(f"/api/v1/bus/events/{first}")).document["items"]
    assert (situation["status"], bool(situation["why"])) == ("PENDING", True)


async def test_a_dead_letter_that_another_operator_redrives_at_the_same_time_is_reported_as_not_found(
    realm: Path, tmp_path: Path
) -> None:
    class Raced(FilesOperations):
        async def situations(self, event_id: UUID) -> list[Situation]:
            found = await super().situations(event_id)
            letters = await self.dead_letters(DeadFilter(event_id=event_id), 1)
            await self.redrive([each.position for each in letters], actor="somebody else")
            return found

    def wrap(bus: Bus, _operations: Operations) -> tuple[Bus, Operations]:
        assert isinstance(bus, FilesBus)
        return bus, Raced(bus)

    async with serving(BACKENDS["files"](str(realm)), tmp_path, wrap=wrap) as site:
        program = site.bearing(await site.token("ci"))
        (dead,) = await make_dead_letters(site, 1)
        refused = await program.post(f"/api/v1/bus/dead-letters/{dead}/patch", {"payload": {"number": 7}})
    assert (refused.status, "no longer a dead letter" in refused.text) == (404, True)


async def test_changing_the_payload_of_a_dead_letter_needs_more_than_the_right_to_redrive_it(site: Site) -> None:
    (dead,) = await make_dead_letters(site, 1)
    operator = site.bearing(await site.token("operator", Right.LOOK, Right.ANSWER, Right.ACT))
    path = f"/api/v1/bus/dead-letters/{dead}"
    before = await operator.get(path)
    refused = await operator.post(f"{path}/patch", {"payload": {"event_id": "evt-1"}})
    assert (refused.status, "lacks the right administer" in refused.text) == (403, True)
    assert (await operator.get(path)).document == before.document
    assert (await operator.post("/api/v1/bus/redrive", {"events": [dead]})).document["redriven"] == 1


async def test_a_program_of_one_general_acts_only_for_it(site: Site) -> None:
    limited = site.bearing(await site.token("limited", generals=("gen-pr",)))
    run = await make_run(site.bus)
    assert (await limited.post(f"/api/v1/runs/{run.id}/cancel")).status == 403
    assert (await limited.post("/api/v1/events", {"type": "demo.sent"})).status == 403
    assert (await limited.post(f"/api/v1/bus/streams/{STREAM}/pause", {"reason": "no"})).status == 403
    async with site.bus.transaction() as transaction:
        await save_question(transaction, question(TASK, general="gen-hello"))
        await save_question(transaction, question("task-20260207-002", general="gen-pr"))
    assert (await limited.post(f"/api/v1/questions/{TASK}/answer", {"text": "yes"})).status == 403
    assert (await limited.post("/api/v1/questions/task-20260207-002/answer", {"text": "yes"})).status == 200


async def test_a_run_is_modified_by_an_edit_of_its_works(site: Site) -> None:
    program = site.bearing(await site.token("ci"))
    run = await make_run(site.bus)
    path = f"/api/v1/runs/{run.id}/modify"
    shown = write_works(run)
    assert "gitRefs" not in shown
    done = await program.post(path, {"definition": shown + "- name: check\n  tasks: [Check it.]\n"})
    works = done.document["works"]
    assert [work["definition"]["name"] for work in works] == ["greet", "check"]
    assert works[0]["id"] == run.works[0].id
    refused = await program.post(path, {"definition": "works: []"})
    assert (refused.status, "at least one work" in refused.document["message"]) == (400, True)


@pytest.mark.parametrize(
    "definition",
    [
        "gitRefs: [other]",
        "mcpServerRefs: [other]",
        "works: [{name: new, tasks: [Read it.], gitRefs: [other]}]",
        "works: [{name: new, tasks: [Read it.], mcpServerRefs: [other]}]",
    ],
)
async def test_a_modification_over_the_web_adds_no_repository_and_no_mcp_server(site: Site, definition: str) -> None:
    program = site.bearing(await site.token("ci"))
    run = await make_run(site.bus)
    refused = await program.post(f"/api/v1/runs/{run.id}/modify", {"definition": definition})
    assert (refused.status, "cannot be changed here" in refused.document["message"]) == (400, True)
    assert (await lifecycle.show(site.bus, run.id)).works == run.works


async def test_a_modified_work_keeps_its_mcp_servers_and_their_environment_stays_hidden(site: Site) -> None:
    program = site.bearing(await site.token("ci"))
    docs = McpServer(id="docs", name="docs", transport=McpTransport.STDIO, command=("docs",))
    await register_mcp_server(site.bus, docs, actor="tester")
    text = f"{TEMPLATE}  mcpServerRefs: [{{mcpServerId: docs, env: {{KEY: s3cret}}}}]\n"
    template = await templates.create_template(site.bus, read_template(text, "greet.yaml"), actor="tester")
    run = await lifecycle.create(site.bus, template.id, actor="tester", name="By hand")
    shown = write_works(run)
    assert "s3cret" not in shown
    edited = {"definition": shown.replace("Say hello.", "Say goodbye.")}
    done = await program.post(f"/api/v1/runs/{run.id}/modify", edited)
    (work,) = (await lifecycle.show(site.bus, run.id)).works
    assert work.definition.tasks[0].query == "Say goodbye."
    assert work.definition.mcp_server_refs == run.works[0].definition.mcp_server_refs
    for answer in (done, await program.get("/api/v1/runs"), await program.get(f"/api/v1/runs/{run.id}")):
        assert (answer.status, "docs" in answer.text, "s3cret" in answer.text) == (200, True, False)


async def test_only_the_people_of_a_question_may_answer_it(site: Site) -> None:
    async with site.bus.transaction() as transaction:
        await save_question(transaction, question(TASK, people=("dana",)))
    eve, dana = site.bearing(await site.token("eve")), site.bearing(await site.token("dana"))
    refused = await eve.post(f"/api/v1/questions/{TASK}/answer", {"text": "yes"})
    assert (refused.status, "eve may not answer" in refused.document["message"]) == (409, True)
    typo = await dana.post(f"/api/v1/questions/{TASK}/answer", {"text": "ye"})
    assert (typo.status, "did you mean yes" in typo.document["message"]) == (409, True)
    done = await dana.post(f"/api/v1/questions/{TASK}/answer", {"text": "yes"})
    assert done.document["task_id"] == TASK
    event = (await dana.get(f"/api/v1/events/{done.document['event_id']}")).document
    assert (event["type"], event["payload"]["user"]) == ("web.human_response", "dana")
    (listed,) = (await dana.get("/api/v1/questions")).document["items"]
    assert listed["answer"] == "yes"


@pytest.mark.parametrize("event_id", ["", "evt-clock-1", "evt-slack-response-1"])
async def test_the_right_to_act_does_not_answer_questions_by_an_event(site: Site, event_id: str) -> None:
    program = site.bearing(await site.token("ci", Right.LOOK, Right.ACT))
    payload = {"task_id": TASK, "user": "dana", "text": "yes"}
    refused = await program.post("/api/v1/events", {"type": "web.human_response", "payload": payload, "id": event_id})
    assert (refused.status, "/api/v1/questions/ID/answer" in refused.document["message"]) == (400, True)
    assert (await program.get("/api/v1/events")).document["items"] == []


async def test_the_right_to_act_does_not_answer_the_question_of_a_general_by_resuming_its_run(site: Site) -> None:
    program = site.bearing(await site.token("ci", Right.LOOK, Right.ACT))
    run = await run_of_general(site, {})
    task = run.id.removeprefix(RUN_PREFIX)
    async with site.bus.transaction() as transaction:
        await save_question(transaction, question(task, people=("dana",)))
    path = f"/api/v1/runs/{run.id}/resume"
    for how in ({"reply": "yes"}, {"inSession": True}, {}):
        refused = await program.post(path, how)
        assert (refused.status, f"/api/v1/questions/{task}/answer" in refused.document["message"]) == (400, True)


@pytest.mark.parametrize(
    ("state", "ways", "next_step"),
    [
        (
            {"status": "AWAITING", "gate": "w1", "reason": "approval after greet"},
            [{"inSession": True}, {}],
            "answer its question when GET /api/v1/questions has it",
        ),
        (
            {"status": "AWAITING", "question": QUESTION},
            [{"inSession": True}, {"fromBase": True}, {"reply": "yes"}],
            "answer its question when GET /api/v1/questions has it",
        ),
        ({"status": "PAUSED", "question": QUESTION}, [{"reply": "yes"}], "leave out `reply`"),
    ],
    ids=["approval", "question", "question of a paused run"],
)
async def test_the_right_to_act_does_not_answer_before_the_general_has_asked(
    site: Site, state: dict[str, Any], ways: list[dict[str, Any]], next_step: str
) -> None:
    program = site.bearing(await site.token("ci", Right.LOOK, Right.ACT))
    run = await run_of_general(site, state)
    for how in ways:
        refused = await program.post(f"/api/v1/runs/{run.id}/resume", how)
        message = refused.document["message"]
        assert (refused.status, "gen-hello asks people" in message, next_step in message) == (400, True, True)


async def test_a_reply_to_a_run_that_asks_nothing_is_refused_as_such(site: Site) -> None:
    program = site.bearing(await site.token("ci", Right.LOOK, Right.ACT))
    run = await run_of_general(site, {"status": "PAUSED"})
    refused = await program.post(f"/api/v1/runs/{run.id}/resume", {"reply": "yes"})
    assert "has no open question" in refused.document["message"]


async def test_an_approval_needs_the_digest_of_what_was_shown(site: Site) -> None:
    dana = site.bearing(await site.token("dana", Right.LOOK, Right.ANSWER))
    asked = approval(f"{TASK}-3f9a01bc", "May gen-hello do this?")
    async with site.bus.transaction() as transaction:
        await save_question(transaction, asked)
    (shown,) = (await dana.get("/api/v1/questions")).document["items"]
    place = f"/api/v1/petitions/{asked.id}"
    assert (await dana.post(f"{place}/approve", {})).status == 400
    assert (await dana.post(f"/api/v1/questions/{asked.id}/answer", {"text": "approve"})).status == 400
    async with site.bus.transaction() as transaction:
        known = await load_question(transaction, asked.id)
        assert known
        await save_question(
            transaction, approval(asked.id, "May gen-hello do something else?", asked.asked_at), known[0]
        )
    stale = await dana.post(f"{place}/approve", {"digest": shown["digest"]})
    assert (stale.status, "no longer what was shown" in stale.document["message"]) == (409, True)
    (now_shown,) = (await dana.get("/api/v1/questions")).document["items"]
    assert (await dana.post(f"{place}/approve", {"digest": now_shown["digest"]})).status == 200
    async with site.bus.transaction() as transaction:
        answered = await load_question(transaction, asked.id)
    assert answered
    assert (answered[1].status, answered[1].answer, answered[1].answered_by) == (
        QuestionStatus.ANSWERED,
        "approve",
        "dana",
    )
    assert (await dana.post(f"{place}/reject", {"digest": now_shown["digest"]})).status == 409
