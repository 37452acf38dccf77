"""Events from the command line, with a King between the commands."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kingdom.backends.files import FilesBus, FilesOperations
from kingdom.bus import Dispatcher
from kingdom.court.documents import ExternalEvent
from kingdom.court.king.context import KingContext
from kingdom.court.king.reactions import STREAMS, register
from kingdom.court.package_files import load_packages
from kingdom.court.records import receive_event
from kingdom.court.streams import TOPOLOGY
from tests.acceptance.terminal import Terminal
from tests.integration.court.king.scene import EVERY_KIND, SEOUL, at_work
from tests.integration.running import eventually
from tests.unit.court.king.making import make_event

GENERAL = """\
name: gen-pr
description: looks at pull requests
subscribes:
  - type: github.pr.*
"""
WORKFLOW = """\
name: look
works:
  - name: look
    tasks:
      - Look at it.
"""


def write_general(directory: Path, general: str = GENERAL) -> Path:
    folder = directory / "gen-pr"
    folder.mkdir(parents=True)
    (folder / "general.yaml").write_text(general)
    (folder / "workflow.yaml").write_text(WORKFLOW)
    return directory


@asynccontextmanager
async def a_king(realm: Path) -> AsyncIterator[FilesBus]:
    """Let a King work on a store of files."""
    dispatcher = Dispatcher()
    register(dispatcher, KingContext(packages=lambda: load_packages(realm / "generals").packages, zone=SEOUL))
    async with FilesBus(realm, TOPOLOGY, EVERY_KIND) as bus, at_work(bus, dispatcher, *STREAMS):
        yield bus


async def until_idle(bus: FilesBus) -> None:
    async def is_idle() -> bool:
        stats = await FilesOperations(bus).stats()
        return not any(each.pending or each.processing for each in stats if each.stream in STREAMS)

    await eventually(is_idle)


async def let_king_decide(realm: Path, *events: ExternalEvent) -> None:
    """Receive events, and let a King decide about them."""
    async with a_king(realm) as bus:
        async with bus.transaction() as transaction:
            for event in events:
                await receive_event(transaction, event, "sentinel")
        await until_idle(bus)


async def test_a_sent_event_is_routed_and_explained(tmp_path: Path, realm: Path) -> None:
    terminal = Terminal(tmp_path, f"file:{realm}")
    write_general(realm / "generals")
    words = ("--type", "github.pr.comment", "--repo", "acme/app", "--payload", '{"number": 7}')
    sent = terminal.run_json("event", "send", *words)
    assert sent["id"].startswith("evt-cli-")
    async with a_king(realm) as bus:
        await until_idle(bus)
    explained = terminal.run_json("why", sent["id"])
    assert explained["standing"] == "It was given to gen-pr by gen-pr#1."
    assert explained["event"]["payload"] == {"number": 7}
    shown = terminal.run("why", sent["id"]).out
    assert "github.pr.comment in acme/app. It was given to gen-pr" in shown
    assert "gen-pr#1" in shown
    assert "dispatched" in terminal.run("event", "show", sent["id"]).out
    assert sent["id"] in terminal.run("event", "list", "--status", "dispatched").out


def test_an_event_is_imported_from_a_file_once_and_without_its_later_fields(tmp_path: Path, realm: Path) -> None:
    terminal = Terminal(tmp_path, f"file:{realm}")
    document = {"id": "evt-jira-1", "type": "jira.ticket.assigned", "routes": [{"general": "gen-x", "rule": "mine"}]}
    (tmp_path / "event.json").write_text(json.dumps(document))
    filed = terminal.run_json("event", "send", f"@{tmp_path / 'event.json'}")
    assert (filed["source"], filed.get("routes")) == ("jira", None)
    assert terminal.run_json("event", "send", f"@{tmp_path / 'event.json'}") == filed


async def test_an_unwanted_event_is_routed_again(tmp_path: Path, realm: Path) -> None:
    terminal = Terminal(tmp_path, f"file:{realm}")
    await let_king_decide(realm, make_event(1))
    assert [event["id"] for event in terminal.run_json("event", "list", "--outcome", "unrouted")] == ["evt-github-1"]
    write_general(realm / "generals")
    assert terminal.run_json("event", "reroute", "evt-github-1")["status"] == "pending"
    async with a_king(realm) as bus:
        await until_idle(bus)
    refused = terminal.run("event", "reroute", "evt-github-1")
    assert (refused.code, "only an unrouted event" in refused.err) == (1, True)


async def test_rules_are_tried_on_past_events(tmp_path: Path, realm: Path) -> None:
    terminal = Terminal(tmp_path, f"file:{realm}")
    now = datetime.now(UTC)
    await let_king_decide(
        realm,
        make_event(1, created_at=now),
        make_event(2, "slack.app_mention", source="slack", created_at=now),
        make_event(3, created_at=now - timedelta(days=9)),
    )
    rules = write_general(tmp_path / "draft")
    simulated = terminal.run_json("simulate", "--since", "1d", "--rules", str(rules))
    assert [(each["event_id"], each["change"]) for each in simulated["differences"]] == [
        ("evt-github-1", "newly routed")
    ]
    shown = terminal.run("simulate", "--since", "30d", "--rules", str(rules)).out
    assert "2 events would be routed differently, 1 would not; 0 are no longer in the store." in shown


def test_a_document_that_is_not_an_event_is_refused_with_a_sentence(tmp_path: Path, realm: Path) -> None:
    terminal = Terminal(tmp_path, f"file:{realm}")
    assert terminal.run("event", "send").code == 2
    assert "is not a valid event type" in terminal.run("event", "send", "--type", "Not A Type").err
    assert "is not a valid event id" in terminal.run("event", "send", "--type", "a.b", "--id", "evt-x").err
    terminal.run_json("event", "send", "--type", "a.b")
    assert terminal.run("why", "evt-nobody-1").code == 1
