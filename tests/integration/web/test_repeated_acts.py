"""An act that is sent again after the server was killed happens once, whatever the act and the moment of the kill."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import aiohttp
import pytest

from kingdom.access.acts import ACCEPTED, DONE
from kingdom.actions.questions import digest_of
from kingdom.clock import utc_now
from kingdom.court.documents import EventStatus, ExternalEvent, Priority
from kingdom.court.king.outcomes import UNROUTED
from kingdom.court.questions import HumanQuestion, save_question
from kingdom.court.records import save
from kingdom.court.streams import EVENT_STREAM, RESULT_STREAM
from kingdom.web.routes import CHANGE_ROUTES
from kingdom.workflow import lifecycle
from kingdom.workflow.hosts import register_host, set_drained
from kingdom.workflow.model.run.workflow import Placement
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import load_workflow
from tests.contract.backends import BackendUnderTest
from tests.integration.processes import child
from tests.integration.web.people import approval, question
from tests.integration.web.server_process import PERFORMED
from tests.integration.web.site import Site, serving
from tests.integration.web.test_acts import log_of, make_dead_letters, make_run

STREAM = EVENT_STREAM.name
# Two streams that exist once.
STREAMS = (EVENT_STREAM.name, RESULT_STREAM.name)
pytestmark = pytest.mark.both_stores


class Request(NamedTuple):
    """What is sent: the values of the parts of the path, and the body."""

    target: str
    body: Any = None


# Prepares the store for the first and the second time that an act is performed.
Preparation = Callable[[Site, int], Awaitable[Request]]


async def run_in(site: Site, number: int, status: WorkflowStatus) -> Request:
    """Store a run on a host."""
    host = await register_host(site.bus, "host-1", 4, timedelta(minutes=5))
    run = await (lifecycle.create(site.bus, "greet", actor="tester") if number else make_run(site.bus))
    async with site.bus.transaction() as transaction:
        record, workflow = await load_workflow(transaction, run.id)
        workflow.status, workflow.started_at = status, utc_now()
        workflow.placement = Placement(host=host.id, epoch=host.epoch)
        await transaction.put(record.replace(state=status, doc=workflow.document()))
    return Request(run.id)


async def ask(site: Site, asked: HumanQuestion, **body: str) -> Request:
    async with site.bus.transaction() as transaction:
        await save_question(transaction, asked)
    return Request(asked.id, body)


async def ask_question(site: Site, number: int) -> Request:
    return await ask(site, question(f"task-20260207-00{number}"), text="yes")


async def ask_approval(site: Site, number: int) -> Request:
    asked = approval(f"task-20260207-001-3f9a01b{number}", "May gen-hello do this?")
    return await ask(site, asked, digest=digest_of(asked))


async def lose_event(site: Site, number: int) -> Request:
    """Store an event that no General accepted."""
    event = ExternalEvent(
        id=f"evt-cli-{number}",
        type="demo.hello",
        source="cli",
        repo=None,
        payload={},
        priority=Priority.NORMAL,
        created_at=utc_now(),
        status=EventStatus.COMPLETED,
        outcome=UNROUTED,
    )
    async with site.bus.transaction() as transaction:
        await save(transaction, event)
    return Request(event.id)


async def new_event(_site: Site, _number: int) -> Request:
    return Request("", {"type": "demo.sent"})


async def running(site: Site, number: int) -> Request:
    return await run_in(site, number, WorkflowStatus.RUNNING)


async def paused(site: Site, number: int) -> Request:
    return (await run_in(site, number, WorkflowStatus.PAUSED))._replace(body={})


async def to_modify(site: Site, number: int) -> Request:
    run = await run_in(site, number, WorkflowStatus.RUNNING)
    return run._replace(body={"definition": "works: [{name: only, tasks: [Say it.]}]"})


async def open_stream(_site: Site, number: int) -> Request:
    return Request(STREAMS[number], {"reason": "a look"})


async def paused_stream(site: Site, number: int) -> Request:
    await site.operations.pause(STREAMS[number], reason="a look", actor="tester")
    return Request(STREAMS[number])


async def dead(site: Site, body: Callable[[str], Any]) -> Request:
    (letter,) = await make_dead_letters(site, 1)
    return Request(letter, body(letter))


async def to_redrive(site: Site, _number: int) -> Request:
    return await dead(site, lambda letter: {"events": [letter], "stopAfter": 0})


async def to_patch(site: Site, _number: int) -> Request:
    return await dead(site, lambda _: {"payload": {"number": 70}})


async def to_discard(site: Site, _number: int) -> Request:
    return await dead(site, lambda _: {"reason": "a test"})


async def lost_host(site: Site, number: int) -> Request:
    host = await register_host(site.bus, f"host-{number}", 4, timedelta(minutes=5))
    return Request(host.id, {"noLongerRuns": True})


async def free_host(site: Site, number: int) -> Request:
    return (await lost_host(site, number))._replace(body=None)


async def drained_host(site: Site, number: int) -> Request:
    host = await free_host(site, number)
    async with site.bus.transaction() as transaction:
        await set_drained(transaction, host.target, drained=True, actor="tester")
    return host


# Acts that write their effects and their key in one transaction: the server can die only after its commit.
AT_ONCE: dict[str, Preparation] = {
    "post_answer": ask_question,
    "post_approve": ask_approval,
    "post_reject": ask_approval,
    "post_run_pause": running,
    "post_run_resume": paused,
    "post_run_modify": to_modify,
    "post_run_cancel": running,
    "post_event": new_event,
    "post_event_reroute": lose_event,
    "post_host_drain": free_host,
    "post_host_undrain": drained_host,
    "post_host_retire": lost_host,
}
IN_STEPS: dict[str, Preparation] = {
    "post_stream_pause": open_stream,
    "post_stream_resume": paused_stream,
    "post_redrive": to_redrive,
    "post_dead_letter_patch": to_patch,
    "post_dead_letter_discard": to_discard,
}
CASES = [(name, DONE) for name in AT_ONCE] + [
    (name, moment) for name in IN_STEPS for moment in (ACCEPTED, PERFORMED, DONE)
]


@pytest.fixture
async def site(backend: BackendUnderTest, tmp_path: Path) -> AsyncIterator[Site]:
    async with serving(backend, tmp_path) as site:
        yield site


@asynccontextmanager
async def dying_server(backend: BackendUnderTest, folder: Path, moment: str) -> AsyncIterator[str]:
    """Run a server that kills itself at a moment, and yield its address."""
    async with child(
        "integration.web.server_process", backend.name, backend.place, moment=moment, folder=str(folder)
    ) as running:
        (url,) = [line.removeprefix("url ") for line in running.lines if line.startswith("url ")]
        yield url


async def traces(site: Site) -> Counter[str]:
    """Return the effects of acts: log entries, records of acts, and events in each state."""
    found = Counter(entry.type for entry in await log_of(site))
    for stream in await site.operations.stats():
        found += Counter({"pending": stream.pending, "dead": stream.dead})
    return found


def test_every_act_that_takes_a_key_is_tried() -> None:
    assert {route.name for route in CHANGE_ROUTES if route.takes_key} == {*AT_ONCE, *IN_STEPS}


@pytest.mark.parametrize(("name", "moment"), CASES)
async def test_an_act_that_is_sent_again_after_a_kill_happens_once(
    backend: BackendUnderTest, site: Site, tmp_path: Path, name: str, moment: str
) -> None:
    (path,) = [route.path for route in CHANGE_ROUTES if route.name == name]
    prepare = {**AT_ONCE, **IN_STEPS}[name]
    program = site.bearing(await site.token("ci"))
    once = await prepare(site, 0)
    before = await traces(site)
    reply = await program.post(filled(path, once), once.body, Idempotency_Key="once")
    assert reply.status == 200, reply.text
    left_by_one = difference(await traces(site), before)

    again = await prepare(site, 1)
    before = await traces(site)
    async with dying_server(backend, tmp_path, moment) as url:
        headers = {**program.headers, "Idempotency-Key": "twice"}
        with pytest.raises(aiohttp.ClientError):
            await site.client.post(url + filled(path, again), json=again.body, headers=headers)
    replies = [await program.post(filled(path, again), again.body, Idempotency_Key="twice") for _ in range(2)]
    assert [each.status for each in replies] == [200, 200], replies
    assert replies[0].document == replies[1].document
    assert difference(await traces(site), before) == left_by_one


def filled(path: str, request: Request) -> str:
    return path.replace("{id}", request.target).replace("{name}", request.target)


def difference(after: Counter[str], before: Counter[str]) -> dict[str, int]:
    """Return what was added and what was removed."""
    return {name: change for name in after | before if (change := after[name] - before[name])}


async def test_a_repeated_act_on_a_stream_does_not_undo_a_later_act_of_a_person(
    backend: BackendUnderTest, site: Site, tmp_path: Path
) -> None:
    program = site.bearing(await site.token("ci"))
    headers = {**program.headers, "Idempotency-Key": "key"}
    path, body = f"/api/v1/bus/streams/{STREAM}/pause", {"reason": "a look"}
    async with dying_server(backend, tmp_path, PERFORMED) as url:
        with pytest.raises(aiohttp.ClientError):
            await site.client.post(url + path, json=body, headers=headers)
    assert await site.operations.resume(STREAM, actor="somebody else")
    assert (await program.post(path, body, Idempotency_Key="key")).status == 200
    assert not await site.operations.resume(STREAM, actor="tester")


@pytest.mark.parametrize("moment", [ACCEPTED, PERFORMED])
async def test_letters_that_are_redriven_again_after_a_kill_are_redriven_once(
    backend: BackendUnderTest, site: Site, tmp_path: Path, moment: str
) -> None:
    program, letters = site.bearing(await site.token("ci")), await make_dead_letters(site, 3)
    body = {"everything": True, "stopAfter": 0, "rate": 1000}
    async with dying_server(backend, tmp_path, moment) as url:
        headers = {**program.headers, "Idempotency-Key": "key"}
        with pytest.raises(aiohttp.ClientError):
            await site.client.post(f"{url}/api/v1/bus/redrive", json=body, headers=headers)
    driven = [each for each in letters if await status_of(site, each) == "PENDING"]
    assert len(driven) == (moment == PERFORMED)
    for each in driven:
        # The new event dies again before the request is repeated. The key covers only the first redrive.
        await site.operations.cancel(UUID(each), STREAM, actor="tester")
    again = (await program.post("/api/v1/bus/redrive", body, Idempotency_Key="key")).document
    assert (again["matching"], again["redriven"]) == (3, 3)
    times = Counter(entry.data["event_id"] for entry in await log_of(site) if entry.type == "dead_letter.redriven")
    assert times == dict.fromkeys(letters, 1)


async def status_of(site: Site, event: str) -> str:
    (situation,) = await site.operations.situations(UUID(event))
    return situation.status
