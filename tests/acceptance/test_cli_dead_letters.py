import json
from typing import Any

import pytest

from kingdom.backends.postgres import PostgresBus
from kingdom.bus import Dead, Envelope, Stream, Topology
from tests.acceptance.store import open_rows, statuses
from tests.acceptance.terminal import Terminal

# Two streams want the same type, so that one event can be dead in both.
TOPOLOGY = Topology(
    [
        Stream(name="orders", subscribes=frozenset({"OrderPlaced"})),
        Stream(name="mail", subscribes=frozenset({"OrderPlaced", "MailWanted"})),
    ]
)
HOSTILE = "no such [red]thing[/red] \x1b[2J\x07"


async def kill(dsn: str, stream: str, reason: Dead) -> None:
    async with PostgresBus(dsn, TOPOLOGY) as bus:
        for delivery in await bus.claim(stream, 100, "somebody"):
            async with bus.transaction(hold=[delivery]) as transaction:
                await transaction.settle(delivery, reason)


async def dead_orders(dsn: str, count: int) -> list[str]:
    envelopes = [Envelope(type="OrderPlaced", stream="orders", payload={"n": n}) for n in range(count)]
    async with PostgresBus(dsn, TOPOLOGY) as bus:
        await bus.publish(*envelopes)
    await kill(dsn, "orders", Dead(HOSTILE, "broken"))
    return [str(envelope.event_id) for envelope in envelopes]


async def test_dead_letters_are_listed_page_by_page_and_by_filter(terminal: Terminal, dsn: str) -> None:
    events = await dead_orders(dsn, 3)
    first, second = terminal.ask("bus", "dead", "list", "--limit", "2")
    assert [first["eventId"], second["eventId"]] == events[:2]
    assert set(first) == {
        *("eventId", "stream", "type", "partitionKey", "attempt", "errorCode", "errorMessage"),
        *("createdAt", "diedAt", "position"),
    }
    assert first["errorMessage"] == HOSTILE
    (rest,) = terminal.ask("bus", "dead", "list", "--after", str(second["position"]))
    assert rest["eventId"] == events[2]
    every = ("--stream", "orders", "--type", "OrderPlaced", "--code", "broken")
    assert len(terminal.ask("bus", "dead", "list", *every)) == 3
    assert terminal.ask("bus", "dead", "list", *every, "--code", "other") == []


async def test_the_list_for_people_shows_control_characters_instead_of_obeying_them(
    terminal: Terminal, dsn: str
) -> None:
    (event, *_) = await dead_orders(dsn, 2)
    shown = terminal.run("bus", "dead", "list", "--limit", "1").out
    assert event in shown
    assert "[red]thing[/red]" in shown
    assert r"\x1b[2J\x07" in shown
    assert "\x1b" not in shown
    assert "There are more" in shown


async def test_a_dead_letter_is_shown_whole(terminal: Terminal, dsn: str) -> None:
    (event,) = await dead_orders(dsn, 1)
    (letter,) = terminal.ask("bus", "dead", "show", event)
    assert letter["envelope"]["payload"] == {"n": 0}
    assert letter["envelope"]["eventId"] == event
    assert letter["history"] == []
    shown = terminal.run("bus", "dead", "show", event).out
    assert f"kingdom bus redrive {event}" in shown
    assert '"payload"' in shown


async def test_a_patched_letter_keeps_its_old_payload_and_is_redriven_with_the_new_one(
    terminal: Terminal, dsn: str
) -> None:
    (event,) = await dead_orders(dsn, 1)
    patched = terminal.ask("bus", "dead", "patch", event, "--payload", "-", text='{"n": 1}')
    assert patched == {"eventId": event, "stream": "orders"}
    (letter,) = terminal.ask("bus", "dead", "show", event)
    assert letter["envelope"]["payload"] == {"n": 1}
    assert [(entry["what"], entry["actor"], entry["payload"]) for entry in letter["history"]] == [
        ("patched", "tester", {"n": 0})
    ]
    redriven = terminal.ask("bus", "redrive", event)
    assert redriven == {
        "dryRun": False,
        "matching": 1,
        "redriven": 1,
        "diedAgain": 0,
        "stopped": False,
        "events": [{"eventId": event, "stream": "orders"}],
    }
    assert statuses(dsn)[event] == "PENDING"


async def test_an_event_that_is_dead_in_two_streams_must_be_told_apart(terminal: Terminal, dsn: str) -> None:
    envelope = Envelope(type="OrderPlaced")
    async with PostgresBus(dsn, TOPOLOGY) as bus:
        await bus.publish(envelope)
    await kill(dsn, "orders", Dead("gone"))
    await kill(dsn, "mail", Dead("gone"))
    event = str(envelope.event_id)
    assert {letter["stream"] for letter in terminal.ask("bus", "dead", "show", event)} == {"orders", "mail"}
    unclear = terminal.run("bus", "dead", "patch", event, "--payload", "{}")
    assert unclear.code == 2
    assert "--stream" in unclear.err
    assert terminal.ask("bus", "redrive", event, "--stream", "mail")["events"] == [{"eventId": event, "stream": "mail"}]
    assert {row["stream"]: row["status"] for row in open_rows(dsn)} == {"mail": "PENDING", "orders": "DEAD"}


async def test_discarding_needs_consent_and_a_reason(terminal: Terminal, dsn: str) -> None:
    (event,) = await dead_orders(dsn, 1)
    words = ("bus", "dead", "discard", event, "--reason", "only a test")
    refused = terminal.run(*words)
    assert refused.code == 2
    assert "--yes" in refused.err
    assert statuses(dsn)[event] == "DEAD"
    assert terminal.ask(*words, "--yes") == {"discarded": [{"eventId": event, "stream": "orders"}]}
    assert statuses(dsn)[event] == "DISCARDED"
    entry = terminal.run("bus", "tail", "--json").documents[-1]
    assert (entry["type"], entry["actor"]) == ("dead_letter.discarded", "tester")
    assert entry["data"]["reason"] == "only a test"


async def test_an_event_that_is_not_dead_is_not_redriven(terminal: Terminal, dsn: str) -> None:
    envelope = Envelope(type="MailWanted")
    async with PostgresBus(dsn, TOPOLOGY) as bus:
        await bus.publish(envelope)
    done = terminal.run("bus", "redrive", str(envelope.event_id))
    assert done.code == 1
    assert "it is PENDING in mail" in done.err


async def test_a_dry_run_changes_nothing_and_counts(terminal: Terminal, dsn: str) -> None:
    events = await dead_orders(dsn, 3)
    planned = terminal.ask("bus", "redrive", "--all", "--code", "broken", "--limit", "2", "--dry-run")
    assert (planned["dryRun"], planned["matching"], planned["redriven"]) == (True, 2, 0)
    shown = terminal.run("bus", "redrive", "--all", "--dry-run").out
    assert "3 dead letter(s) would be redriven" in shown
    assert statuses(dsn) == dict.fromkeys(events, "DEAD")


async def test_all_that_match_are_redriven_with_consent(terminal: Terminal, dsn: str) -> None:
    events = await dead_orders(dsn, 3)
    assert terminal.run("bus", "redrive", "--all").code == 2
    done = terminal.ask("bus", "redrive", "--all", "--stream", "orders", "--limit", "2", "--rate", "1000", "--yes")
    assert (done["matching"], done["redriven"], done["stopped"]) == (2, 2, False)
    assert [statuses(dsn)[event] for event in events] == ["PENDING", "PENDING", "DEAD"]


async def test_a_person_at_a_terminal_is_asked_and_sees_how_far_it_is(terminal: Terminal, dsn: str) -> None:
    events = await dead_orders(dsn, 2)
    words = ("bus", "redrive", "--all", "--rate", "5")
    refused = terminal.converse(*words, until="[y/N]", answer="n\n")
    assert refused.code == 1
    assert statuses(dsn) == dict.fromkeys(events, "DEAD")
    agreed = terminal.converse(*words, until="[y/N]", answer="y\n")
    assert agreed.code == 0
    assert "Redrive 2 dead letter(s)?" in agreed.out
    assert "Redriving" in agreed.out
    assert "Redriven 2 of 2" in agreed.out
    assert statuses(dsn) == dict.fromkeys(events, "PENDING")


@pytest.mark.parametrize("stop_after", [1, 0])
async def test_redriving_stops_when_events_die_again_unless_told_otherwise(
    terminal: Terminal, dsn: str, stop_after: int
) -> None:
    count = 8
    hopeless = {"fail": "still broken"}
    async with PostgresBus(dsn, TOPOLOGY) as bus:
        await bus.publish(*(Envelope(type="OrderPlaced", stream="orders", payload=hopeless) for _ in range(count)))
    await kill(dsn, "orders", Dead("broken"))
    words = ("bus", "redrive", "--all", "--yes", "--json", "--rate", "20", "--stop-after", str(stop_after))
    with terminal.worker():
        done = terminal.run(*words)
    document: dict[str, Any] = json.loads(done.out)
    assert document["matching"] == count
    assert document["stopped"] is bool(stop_after)
    assert done.code == (1 if stop_after else 0)
    if stop_after:
        assert document["redriven"] < count
        assert document["diedAgain"] >= 1
    else:
        assert document["redriven"] == count
