"""Dead letters can be listed, patched, redriven and discarded, and keep their history."""

from itertools import pairwise

import pytest

from kingdom.bus import Dead, Done, Retry
from kingdom.bus.operations import DeadFilter
from kingdom.errors import NotFound
from tests.contract.scene import HOUR, NO_WAIT, Scene, ids, ping, step


async def test_a_dead_letter_shows_all_that_a_person_needs(scene: Scene) -> None:
    event = step("k", 7)
    await scene.bus.publish(event)
    await scene.settle(Retry(NO_WAIT), await scene.claim_one("line"))
    delivery = await scene.claim_one("line")
    await scene.settle(Dead("it broke", "broken"), delivery)
    (letter,) = await scene.dead()
    assert (letter.event_id, letter.stream, letter.type, letter.partition_key) == (event.event_id, "line", "Step", "k")
    assert (letter.error_code, letter.error_message, letter.attempt) == ("broken", "it broke", 2)
    assert letter.position == delivery.position
    assert letter.created_at <= letter.died_at
    assert letter.envelope["payload"] == {"number": 7}
    assert letter.envelope["traceId"] == event.trace_id
    assert list(letter.history) == []


async def test_only_dead_events_are_dead_letters(scene: Scene) -> None:
    await scene.bus.publish(*map(ping, range(4)))
    dead, done, retried, _running = [await scene.claim_one("free") for _ in range(4)]
    await scene.settle(Dead("broken"), dead)
    await scene.settle(Done(), done)
    await scene.settle(Retry(HOUR), retried)
    assert ids(await scene.dead()) == ids([dead])


async def test_dead_letters_are_found_by_stream_type_code_and_id(scene: Scene) -> None:
    await scene.bus.publish(ping(1), ping(2), step())
    first, second = await scene.claim("free")
    await scene.settle(Dead("no", "refused"), first)
    await scene.settle(Dead("no", "broken"), second)
    third = await scene.kill_next("line")
    assert ids(await scene.dead(stream="free")) == ids([first, second])
    assert ids(await scene.dead(type="Step")) == ids([third])
    assert set(ids(await scene.dead(code="broken"))) == set(ids([second, third]))
    assert ids(await scene.dead(stream="free", code="refused", type="Ping")) == ids([first])
    found = await scene.operations.dead_letters(DeadFilter(event_id=second.envelope.event_id), 10)
    assert ids(found) == ids([second])
    assert await scene.dead(stream="free", type="Step") == []


@pytest.mark.parametrize("stream", [None, "free"])
async def test_dead_letters_come_page_by_page(scene: Scene, stream: str | None) -> None:
    events = [ping(number) for number in range(5)]
    await scene.bus.publish(*events)
    await scene.settle(Dead("broken"), *await scene.claim("free"))
    pages, after = [], 0
    while page := await scene.operations.dead_letters(DeadFilter(stream=stream, after=after), 2):
        pages.append(page)
        after = page[-1].position
    letters = [letter for page in pages for letter in page]
    assert {len(page) for page in pages[:-1]} == {2}
    assert ids([letter for letter in letters if letter.event_id not in scene.bystanders]) == ids(events)
    assert len(letters) == len(events) + (stream is None)


async def test_a_patch_replaces_the_payload_and_keeps_the_original(scene: Scene) -> None:
    event = ping(1)
    await scene.bus.publish(event)
    delivery = await scene.kill_next("free")
    for number in (2, 3):
        await scene.operations.patch(event.event_id, "free", {"number": number}, actor="ann")
    (letter,) = await scene.dead()
    assert letter.envelope["payload"] == {"number": 3}
    assert [entry["payload"] for entry in letter.history] == [{"number": 1}, {"number": 2}]
    assert {(entry["what"], entry["actor"]) for entry in letter.history} == {("patched", "ann")}
    await scene.redrive(delivery)
    assert (await scene.claim_one("free")).envelope.payload == {"number": 3}


async def test_a_patch_leaves_the_other_dead_letters_of_the_stream_alone(scene: Scene) -> None:
    patched, other = ping(1), ping(2)
    await scene.bus.publish(patched, other)
    await scene.settle(Dead("broken"), *await scene.claim("free"))
    await scene.operations.patch(patched.event_id, "free", {"number": 3}, actor="ann")
    letters = {letter.event_id: letter for letter in await scene.dead()}
    assert letters[other.event_id].envelope["payload"] == {"number": 2}
    assert not letters[other.event_id].history


async def test_only_a_dead_letter_can_be_patched(scene: Scene) -> None:
    event = ping(1)
    await scene.bus.publish(event)
    with pytest.raises(NotFound):
        await scene.operations.patch(event.event_id, "free", {"number": 2}, actor="ann")
    await scene.kill_next("free")
    with pytest.raises(NotFound):
        await scene.operations.patch(event.event_id, "other", {"number": 2}, actor="ann")
    assert await scene.log_types() == []


async def test_a_redriven_event_is_the_same_event_at_its_first_attempt(scene: Scene) -> None:
    event = ping()
    await scene.bus.publish(event)
    await scene.settle(Retry(NO_WAIT), await scene.claim_one("free"))
    first = await scene.kill_next("free")
    assert await scene.redrive(first) == [event.event_id]
    assert await scene.dead() == []
    second = await scene.claim_one("free")
    assert (second.position, second.envelope) == (first.position, first.envelope)
    assert (second.attempt, second.crash_count) == (1, 0)
    assert second.token > first.token


async def test_every_redrive_is_kept_in_the_history(scene: Scene) -> None:
    await scene.bus.publish(ping())
    for code in ("one", "two", "three"):
        delivery = await scene.claim_one("free")
        await scene.settle(Dead(f"round {code}", code), delivery)
        (letter,) = await scene.dead()
        await scene.redrive(delivery)
    await scene.kill_next("free")
    (letter,) = await scene.dead()
    assert [entry["code"] for entry in letter.history] == ["one", "two", "three"]
    assert [entry["message"] for entry in letter.history] == ["round one", "round two", "round three"]
    assert [entry["attempts"] for entry in letter.history] == [1, 1, 1]
    assert {entry["actor"] for entry in letter.history} == {"tester"}
    assert all(a["at"] <= b["at"] for a, b in pairwise(letter.history))


async def test_a_quarantined_event_is_no_longer_suspect_after_its_redrive(scene: Scene) -> None:
    await scene.bus.publish(ping())
    for _ in range(4):
        await scene.lose(await scene.claim_one("free"))
    condemned = await scene.claim_one("free")
    verdict = condemned.outcome_without_running()
    assert verdict is not None
    await scene.settle(verdict, condemned)
    await scene.redrive(condemned)
    again = await scene.claim_one("free")
    assert again.outcome_without_running() is None
    assert not again.suspect


async def test_a_redrive_of_events_that_are_not_dead_does_nothing(scene: Scene) -> None:
    await scene.bus.publish(ping(1), ping(2))
    done, running = await scene.claim("free")
    await scene.settle(Done(), done)
    assert await scene.redrive(done, running) == []
    assert await scene.operations.redrive([10**9], actor="tester") == []
    assert await scene.log_types() == []


async def test_a_discarded_letter_can_be_neither_redriven_nor_discarded_again(scene: Scene) -> None:
    event = ping()
    await scene.bus.publish(event)
    dead = await scene.kill_next("free")
    assert await scene.discard(dead) == [event.event_id]
    assert await scene.dead() == []
    assert await scene.redrive(dead) == []
    assert await scene.discard(dead) == []
    assert await scene.claim("free") == []
    assert await scene.status(event) == "DISCARDED"


async def test_every_repair_is_written_to_the_log_with_its_actor(scene: Scene) -> None:
    events = [ping(1), ping(2), ping(3)]
    await scene.bus.publish(*events)
    first, second, _ = deliveries = await scene.claim("free")
    await scene.settle(Dead("broken"), *deliveries[:2])
    await scene.operations.patch(events[0].event_id, "free", {}, actor="ann")
    await scene.redrive(first)
    await scene.discard(second)
    await scene.cancel(events[2])
    entries = [logged.entry for logged in await scene.read_log()]
    assert [(entry.type, entry.actor) for entry in entries] == [
        ("dead_letter.patched", "ann"),
        ("dead_letter.redriven", "tester"),
        ("dead_letter.discarded", "tester"),
        ("event.cancelled", "tester"),
    ]
    assert [entry.data["event_id"] for entry in entries] == [
        str(event.event_id) for event in (events[0], events[0], events[1], events[2])
    ]


async def test_the_cancellation_of_a_waiting_event_makes_it_a_dead_letter(scene: Scene) -> None:
    event = ping()
    await scene.bus.publish(event)
    assert await scene.cancel(event) == "cancelled"
    assert await scene.claim("free") == []
    (letter,) = await scene.dead(code="cancelled")
    assert letter.event_id == event.event_id


async def test_the_cancellation_of_a_running_event_is_seen_at_its_renewal(scene: Scene) -> None:
    await scene.bus.publish(ping(1), ping(2))
    running, neighbor = await scene.claim("free")
    assert await scene.cancel(running) == "requested"
    renewal = scene.bus.renew({running.token: HOUR})
    assert renewal.alive == {running.token}
    assert renewal.cancelled == {running.position}
    await scene.settle(Dead("cancelled", "cancelled"), running)
    await scene.settle(Done(), neighbor)


async def test_an_event_that_has_ended_cannot_be_cancelled(scene: Scene) -> None:
    await scene.bus.publish(ping())
    delivery = await scene.claim_one("free")
    await scene.settle(Done(), delivery)
    with pytest.raises(NotFound):
        await scene.operations.cancel(delivery.envelope.event_id, "free", actor="tester")


async def test_an_event_that_was_cancelled_while_it_waited_for_another_of_its_key_is_listed(scene: Scene) -> None:
    await scene.bus.publish(step("k", 1), second := step("k", 2))
    assert await scene.cancel(second) == "cancelled"
    assert ids(await scene.dead()) == ids(await scene.dead(stream="line")) == [second.event_id]
