"""Two Kings who decide the same thing at the same time decide it once."""

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from kingdom.bus import Dispatcher, Event, Transaction
from kingdom.court.documents import Assignment, AssignmentStatus, Priority
from kingdom.court.king.settings import KingSettings
from kingdom.court.king.timers import run_timers_once
from kingdom.court.quota import QUOTAS, read_quota
from kingdom.court.records import ASSIGNMENTS, load, receive_event, save
from kingdom.court.streams import ASSIGNMENT_GIVEN, TOPOLOGY, AssignmentGiven, slot_release_due
from tests.contract.backends import BackendUnderTest
from tests.integration.court.king.scene import EVERY_KIND, Scene, another_king, at_work, opened
from tests.integration.soldiers.host_barriers import Barrier
from tests.patience import PATIENCE_SECONDS
from tests.unit.court.king.making import every, make_event, make_package, wants

PR = make_package("gen-pr", wants("github.pr.*"))


def makes_assignment(transaction: Transaction) -> bool:
    return any(
        kind == ASSIGNMENTS.name and put.record.state == AssignmentStatus.PENDING
        for (kind, _), put in transaction.changes.puts.items()
    )


async def arrive(scene: Scene, *numbers: int, source: str = "github", **more: Any) -> None:
    async with scene.bus.transaction() as transaction:
        for number in numbers:
            await receive_event(transaction, make_event(number, source=source, **more), "sentinel")


@pytest.mark.both_stores
async def test_two_kings_never_give_the_last_slot_twice(backend: BackendUnderTest) -> None:
    barrier = Barrier(makes_assignment)
    async with opened(backend, PR, settings=KingSettings(soldiers=1), kings=0) as scene:
        await arrive(scene, 1, repo="acme/a")
        async with another_king(backend, scene, wrap=barrier.wrap):
            await barrier.reached()
            async with another_king(backend, scene):
                await arrive(scene, 2, repo="acme/b")

                async def second_is_assigned() -> bool:
                    return bool((await scene.event("evt-github-2")).routes)

                await scene.until(second_is_assigned)
                barrier.open()
                await scene.settle()
        assert [assignment.event_id for assignment in await scene.assigned()] == ["evt-github-2"]
        assert len((await scene.quota("soldiers")).holders) == 1
        assert await scene.waiting_lines() == {"evt-github-1": "ready"}


@pytest.mark.both_stores
async def test_two_kings_admit_an_event_once(backend: BackendUnderTest) -> None:
    barrier = Barrier(makes_assignment)
    async with opened(backend, PR) as scene, backend.open(TOPOLOGY, EVERY_KIND) as other:
        await scene.set_health("red")
        await scene.send(make_event(1))
        await scene.set_health("green")
        slow = asyncio.create_task(run_timers_once(barrier.wrap(other), scene.context))
        await barrier.reached()
        await scene.tick()
        barrier.open()
        await asyncio.wait_for(slow, PATIENCE_SECONDS)
        assert [assignment.event_id for assignment in await scene.assigned()] == ["evt-github-1"]
        assert len(await scene.messages()) == 1


@pytest.mark.both_stores
async def test_two_kings_accept_an_answer_once(backend: BackendUnderTest) -> None:
    barrier = Barrier(makes_assignment)
    async with opened(backend, PR, kings=0) as scene:
        async with another_king(backend, scene):
            await scene.send(make_event(1))
            task = await scene.assignment_of("evt-github-1")
            await scene.ask_person(task)
        reply = {"event_type": "slack.human_response", "source": "slack", "priority": Priority.HIGH}
        await arrive(scene, 2, payload={"task_id": task, "text": "yes"}, **reply)
        async with another_king(backend, scene, wrap=barrier.wrap):
            await barrier.reached()
            async with another_king(backend, scene):
                await arrive(scene, 3, payload={"task_id": task, "text": "no"}, **reply)

                async def second_is_taken() -> bool:
                    return (await scene.event("evt-slack-3")).status == "completed"

                await scene.until(second_is_taken)
                barrier.open()
                await scene.settle()
        _, resumed = await scene.assigned()
        assert resumed.payload["text"] == "no"
        assert (await scene.event("evt-slack-2")).outcome == "ignored"


@pytest.mark.both_stores
async def test_two_kings_fire_a_schedule_once(backend: BackendUnderTest) -> None:
    nightly = make_package("gen-report", schedules=[every("0 * * * *")])
    barrier = Barrier(lambda transaction: bool(transaction.dedup_keys_taken))
    async with opened(backend, nightly) as scene, backend.open(TOPOLOGY, EVERY_KIND) as other:
        await scene.tick()
        scene.clock.forward(hours=1)
        slow = asyncio.create_task(run_timers_once(barrier.wrap(other), scene.context))
        await barrier.reached()
        fast = asyncio.create_task(run_timers_once(scene.bus, scene.context))
        # On a store that locks keys, the second King waits until the first has ended.
        await asyncio.wait({fast}, timeout=1)
        barrier.open()
        await asyncio.wait_for(asyncio.gather(slow, fast), PATIENCE_SECONDS)
        await scene.settle()
        assert [assignment.event_id for assignment in await scene.assigned()] == ["schedule-nightly"]
        assert len(await scene.log("event.detected")) == 1


@pytest.mark.both_stores
async def test_many_events_under_two_kings_keep_every_limit_and_all_end(backend: BackendUnderTest) -> None:
    count, most = 24, Counter[str]()

    async def complete(received: Event[AssignmentGiven], transaction: Transaction) -> None:
        """Act as a General, and record how many others run at the same time."""
        record, assignment = await load(transaction, Assignment, received.payload.assignment_id)
        for scope in ("soldiers", f"repo:{assignment.repo}"):
            quota = await transaction.get(QUOTAS.name, scope)
            assert quota
            most[scope] = max(most[scope], len(read_quota(quota.doc).holders))
        await save(
            transaction, msgspec.structs.replace(assignment, status=AssignmentStatus.COMPLETED, cost_usd=0.5), record
        )
        await transaction.publish(slot_release_due(assignment.id))

    general = Dispatcher()
    general.reaction(ASSIGNMENT_GIVEN)(complete)
    async with (
        opened(backend, PR, kings=2) as scene,
        backend.open(TOPOLOGY, EVERY_KIND) as own,
        at_work(own, general, "court.task.gen-pr"),
    ):
        for number in range(1, count + 1):
            await arrive(scene, number, repo=f"acme/{number % 5}")

        async def all_have_ended() -> bool:
            # The periodic check finds a slot that two Kings have overlooked.
            await scene.tick()
            events = await scene.find("event")
            return [event.state for event in events] == ["completed"] * count

        await scene.until(all_have_ended)
        assigned = Counter(assignment.event_id for assignment in await scene.assigned())
        assert assigned == Counter({f"evt-github-{number}": 1 for number in range(1, count + 1)})
        assert most.pop("soldiers") <= 3
        assert set(most.values()) == {1}
        assert float((await scene.quota("money")).spent) == count * 0.5
        for scope in ("soldiers", *most):
            assert not (await scene.quota(scope)).holders
