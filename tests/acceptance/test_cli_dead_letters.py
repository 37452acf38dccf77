import asyncio
import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from kingdom.backends.postgres import PostgresBus, PostgresOperations
from kingdom.bus import Dead, Envelope, Stream, Topology
from tests.acceptance.sample_store import InProcessCli
from tests.acceptance.store import open_rows, statuses
from tests.acceptance.terminal import Terminal

# Two streams subscribe to the same type, so that one event can be dead in both.
TOPOLOGY = Topology(
    [
        Stream(name="orders", subscribes=frozenset({"OrderPlaced"})),
        Stream(name="mail", subscribes=frozenset({"OrderPlaced", "MailWanted"})),
    ]
)
HOSTILE = "no such [red]thing[/red] \x1b[2J\x07"


def dead(dsn: str, *envelopes: Envelope, streams: Sequence[str] = ("orders",)) -> list[str]:
    """Publish events that no handler accepts, and return their ids."""

    async def publish_and_kill() -> None:
        async with PostgresBus(dsn, TOPOLOGY) as bus:
            await bus.publish(*envelopes)
            await kill(bus, streams)

    asyncio.run(publish_and_kill())
    return [str(envelope.event_id) for envelope in envelopes]


async def kill(bus: PostgresBus, streams: Sequence[str]) -> None:
    """Make all pending events DEAD."""
    for delivery in [each for stream in streams for each in await bus.claim(stream, 100, "somebody")]:
        async with bus.transaction(hold=[delivery]) as transaction:
            await transaction.settle(delivery, Dead(HOSTILE, "broken"))


def dead_orders(dsn: str, count: int, **payload: str) -> list[str]:
    return dead(
        dsn, *(Envelope(type="OrderPlaced", stream="orders", payload={"n": n, **payload}) for n in range(count))
    )


def test_dead_letters_are_listed_page_by_page_and_by_filter(cli_on_database: InProcessCli, dsn: str) -> None:
    events = dead_orders(dsn, 3)
    first, second = cli_on_database.run_json("bus", "dead", "list", "--limit", "2")
    assert [first["eventId"], second["eventId"]] == events[:2]
    assert set(first) == {
        *("eventId", "stream", "type", "partitionKey", "attempt", "errorCode", "errorMessage"),
        *("createdAt", "diedAt", "position"),
    }
    assert first["errorMessage"] == HOSTILE
    (rest,) = cli_on_database.run_json("bus", "dead", "list", "--after", str(second["position"]))
    assert rest["eventId"] == events[2]
    every = ("--stream", "orders", "--type", "OrderPlaced", "--code", "broken")
    assert len(cli_on_database.run_json("bus", "dead", "list", *every)) == 3
    assert cli_on_database.run_json("bus", "dead", "list", *every, "--code", "other") == []


def test_the_list_for_people_shows_control_characters_instead_of_obeying_them(
    cli_on_database: InProcessCli, dsn: str
) -> None:
    (event, *_) = dead_orders(dsn, 2)
    shown = cli_on_database("bus", "dead", "list", "--limit", "1", "--code", "broken").out
    assert event in shown
    assert "[red]thing[/red]" in shown
    assert r"\x1b[2J\x07" in shown
    assert "\x1b" not in shown
    assert "There are more: kingdom bus dead list --code broken --limit 1 --after " in shown


def test_a_dead_letter_is_shown_with_its_envelope_and_its_history(cli_on_database: InProcessCli, dsn: str) -> None:
    (event,) = dead_orders(dsn, 1, words="\x9b2J")
    (letter,) = cli_on_database.run_json("bus", "dead", "show", event)
    assert letter["envelope"]["payload"] == {"n": 0, "words": "\x9b2J"}
    assert letter["envelope"]["eventId"] == event
    assert letter["history"] == []
    shown = cli_on_database("bus", "dead", "show", event).out
    assert f"kingdom bus redrive {event}" in shown
    assert r'"words": "\x9b2J"' in shown


def test_a_patched_letter_keeps_its_old_payload_and_is_redriven_with_the_new_one(
    cli_on_database: InProcessCli, dsn: str
) -> None:
    (event,) = dead_orders(dsn, 1)
    patched = cli_on_database.run_json("bus", "dead", "patch", event, "--payload", "-", text='{"n": 1}')
    assert patched == {"eventId": event, "stream": "orders"}
    (letter,) = cli_on_database.run_json("bus", "dead", "show", event)
    assert letter["envelope"]["payload"] == {"n": 1}
    assert [(entry["what"], entry["actor"], entry["payload"]) for entry in letter["history"]] == [
        ("patched", "tester", {"n": 0})
    ]
    redriven = cli_on_database.run_json("bus", "redrive", event, "--stop-after", "0")
    assert redriven == {
        "dryRun": False,
        "matching": 1,
        "redriven": 1,
        "diedAgain": 0,
        "stopped": False,
        "events": [{"eventId": event, "stream": "orders"}],
    }
    assert statuses(dsn)[event] == "PENDING"


def test_a_dead_event_in_two_streams_must_be_named_with_its_stream(cli_on_database: InProcessCli, dsn: str) -> None:
    (event,) = dead(dsn, Envelope(type="OrderPlaced"), streams=("orders", "mail"))
    assert {letter["stream"] for letter in cli_on_database.run_json("bus", "dead", "show", event)} == {"orders", "mail"}
    unclear = cli_on_database("bus", "dead", "patch", event, "--payload", "{}")
    assert unclear.code == 2
    assert "--stream" in unclear.err
    assert cli_on_database.run_json("bus", "redrive", event, "--stream", "mail", "--stop-after", "0")["events"] == [
        {"eventId": event, "stream": "mail"}
    ]
    assert {row["stream"]: row["status"] for row in open_rows(dsn)} == {"mail": "PENDING", "orders": "DEAD"}


def test_discarding_needs_consent_and_a_reason(cli_on_database: InProcessCli, dsn: str) -> None:
    (event,) = dead_orders(dsn, 1)
    words = ("bus", "dead", "discard", event, "--reason", "only a test")
    refused = cli_on_database(*words)
    assert refused.code == 2
    assert "--yes" in refused.err
    assert statuses(dsn)[event] == "DEAD"
    assert cli_on_database.run_json(*words, "--yes") == {"discarded": [{"eventId": event, "stream": "orders"}]}
    assert statuses(dsn)[event] == "DISCARDED"
    entry = cli_on_database("bus", "tail", "--json").documents[-1]
    assert (entry["type"], entry["actor"]) == ("dead_letter.discarded", "tester")
    assert entry["data"]["reason"] == "only a test"


def test_an_id_that_is_given_twice_is_redriven_or_discarded_once(cli_on_database: InProcessCli, dsn: str) -> None:
    one, other = dead_orders(dsn, 2)
    redriven = cli_on_database("bus", "redrive", one, one, "--rate", "1000", "--stop-after", "0")
    assert "Redrove 1 of 2 dead letter(s)." in redriven.out
    discarded = cli_on_database("bus", "dead", "discard", other, other, "--reason", "only a test", "--yes")
    assert "Discarded 1 of 2 dead letter(s)." in discarded.out


def test_an_event_that_is_not_dead_is_not_redriven(cli_on_database: InProcessCli, dsn: str) -> None:
    (event,) = dead(dsn, Envelope(type="MailWanted"), streams=())
    done = cli_on_database("bus", "redrive", event)
    assert done.code == 1
    assert "it is PENDING in mail" in done.err


def test_a_dry_run_changes_nothing_and_counts(cli_on_database: InProcessCli, dsn: str) -> None:
    events = dead_orders(dsn, 3)
    planned = cli_on_database.run_json("bus", "redrive", "--all", "--code", "broken", "--limit", "2", "--dry-run")
    assert (planned["dryRun"], planned["matching"], planned["redriven"]) == (True, 2, 0)
    shown = cli_on_database("bus", "redrive", "--all", "--dry-run").out
    assert "3 dead letter(s) would be redriven" in shown
    assert statuses(dsn) == dict.fromkeys(events, "DEAD")


def test_all_matching_dead_letters_are_redriven_with_consent(cli_on_database: InProcessCli, dsn: str) -> None:
    events = dead_orders(dsn, 3)
    assert cli_on_database("bus", "redrive", "--all").code == 2
    done = cli_on_database.run_json(
        "bus", "redrive", "--all", "--stream", "orders", "--limit", "2", "--rate", "1000", "--yes"
    )
    assert (done["matching"], done["redriven"], done["stopped"]) == (2, 2, False)
    assert [statuses(dsn)[event] for event in events] == ["PENDING", "PENDING", "DEAD"]


def test_a_person_at_a_terminal_is_asked_and_sees_the_progress(terminal: Terminal, dsn: str) -> None:
    events = dead_orders(dsn, 2)
    words = ("bus", "redrive", "--all", "--rate", "5")
    refused = terminal.converse(*words, until="[y/N]", answer="n\n")
    assert refused.code == 1
    assert statuses(dsn) == dict.fromkeys(events, "DEAD")
    agreed = terminal.converse(*words, until="[y/N]", answer="y\n")
    assert agreed.code == 0
    assert "Redrive 2 dead letter(s)?" in agreed.out
    assert "Redriving" in agreed.out
    assert "Redrove 2 of 2" in agreed.out
    assert statuses(dsn) == dict.fromkeys(events, "PENDING")


@pytest.mark.parametrize("stop_after", [1, 0])
def test_redriving_stops_when_events_die_again_unless_requested_otherwise(
    cli_on_database: InProcessCli, dsn: str, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    dead_orders(dsn, 3)
    revive = PostgresOperations.redrive

    async def revive_and_kill(operations: PostgresOperations, positions: Sequence[int], *, actor: str) -> list[UUID]:
        events = await revive(operations, positions, actor=actor)
        async with PostgresBus(dsn, TOPOLOGY) as bus:
            await kill(bus, ["orders"])
        return events

    monkeypatch.setattr(PostgresOperations, "redrive", revive_and_kill)
    words = ("bus", "redrive", "--all", "--yes", "--json", "--rate", "1000", "--stop-after", str(stop_after))
    done = cli_on_database(*words)
    assert done.code == (1 if stop_after else 0), done.err
    document: dict[str, Any] = json.loads(done.out)
    assert (document["matching"], document["redriven"]) == (3, 1 if stop_after else 3)
    assert (document["stopped"], document["diedAgain"]) == (bool(stop_after), stop_after)
