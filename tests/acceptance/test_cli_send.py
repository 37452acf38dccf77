"""`kingdom send` and `kingdom answer`, in this process: progress while they wait, and results of repeated calls."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from kingdom.bootstrap import open_bus
from kingdom.bus.port import Bus
from kingdom.bus.record import Record
from kingdom.cli.event.wait import wait_for
from kingdom.cli.framework.output import CommandOutput
from kingdom.clock import utc_now
from kingdom.court.chamberlain.records import HEALTH
from kingdom.court.documents import EventStatus, ExternalEvent, Priority
from kingdom.court.heartbeat import FileHeartbeatWriter
from kingdom.court.king.context import KingContext
from kingdom.court.king.waiting_queue import READY, WAITING, WAITING_ENTRIES, WaitingEntry
from kingdom.court.questions import HumanQuestion, save_question
from kingdom.court.records import CURRENT, load, receive_event, save
from kingdom.court.status import StatusSources
from kingdom.realm import Realm
from kingdom.roles import declare_application
from tests.acceptance.sample_store import InProcessCli
from tests.integration.running import eventually
from tests.patience import PATIENCE_SECONDS

TASK = "task-20260207-001"
LATER = "task-20260208-002"
EVENT = "evt-cli-release-1.2"
HELLO = ("--type", "demo.hello", "--id", EVENT)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> InProcessCli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KINGDOM_DATABASE_URL", f"file:{tmp_path / 'realm'}")
    return InProcessCli(capsys, monkeypatch)


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[Bus]:
    application = declare_application(Realm())
    async with open_bus(f"file:{directory / 'realm'}", application.topology, application.kinds) as bus:
        yield bus


def an_event(**changes: object) -> ExternalEvent:
    document: dict[str, object] = {
        "id": EVENT,
        "type": "demo.hello",
        "source": "cli",
        "repo": None,
        "payload": {},
        "priority": Priority.NORMAL,
        "created_at": utc_now().isoformat(),
        "status": EventStatus.PENDING,
    }
    return ExternalEvent.read({**document, **changes})


def asking(directory: Path, *tasks: str) -> None:
    """Store an event whose General asks a question for each of these assignments, in this order."""

    async def make() -> None:
        now = utc_now()
        async with opened(directory) as bus, bus.transaction() as transaction:
            routes = [{"general": "gen-hello", "rule": "gen-hello#1", "task_id": tasks[0]}]
            event = an_event(status=EventStatus.DISPATCHED, routes=routes)
            await receive_event(transaction, event, "tester")
            for number, task in enumerate(tasks):
                ask = HumanQuestion(
                    id=task,
                    assignment_id=task,
                    general="gen-hello",
                    workflow_id=f"wf-{task}",
                    text="May I?",
                    choices=("yes", "no"),
                    asked_at=now + timedelta(seconds=number),
                    due_at=now + timedelta(days=1),
                )
                await save_question(transaction, ask)

    asyncio.run(make())


def test_a_waiting_sender_gets_the_question_and_the_command_that_answers_it(cli: InProcessCli, tmp_path: Path) -> None:
    asking(tmp_path, TASK)
    done = cli("send", *HELLO, "--wait")
    assert (done.code, done.out) == (
        4,
        f"{TASK} asks: May I? (yes / no)\nAnswer with: kingdom answer {TASK} TEXT\n",
    )
    asked = cli("send", *HELLO, "--wait", "--json")
    assert (asked.code, asked.document["status"]) == (4, "dispatched")
    assert f"kingdom answer {TASK} TEXT" in asked.err


def test_sending_the_same_event_again_succeeds_and_stores_nothing_new(cli: InProcessCli) -> None:
    first = cli("send", *HELLO, "--payload", '{"from": "anna"}', "--json")
    again = cli("send", *HELLO, "--payload", '{"from": "anna"}', "--json")
    assert (first.code, again.code, again.out) == (0, 0, first.out)
    assert "already exists (pending) and was not sent again" in cli("send", *HELLO, "--payload", '{"from": "anna"}').out
    assert len(json.loads(cli("event", "list", "--json").out)) == 1
    other = cli("send", *HELLO, "--payload", '{"from": "ben"}')
    assert (other.code, "with other content: give this event another id" in other.err) == (1, True)


def test_the_assignment_log_has_a_line_for_each_event_and_answer_of_a_person(cli: InProcessCli, tmp_path: Path) -> None:
    sent = cli("send", *HELLO)
    cli("send", *HELLO)
    assert (sent.code, sent.err) == (0, "")
    asking(tmp_path, TASK)
    answered = cli("answer", TASK, "yes", "--json")
    assert (answered.code, answered.err) == (0, "")
    lines = (tmp_path / "realm" / "logs" / "tasks.log").read_text().splitlines()
    emitted = [line.partition("[EVENT] Emitted: ")[2].partition(" ")[0] for line in lines]
    assert emitted == [EVENT, answered.document["event_id"]]


@pytest.mark.parametrize("wrong", ["v1.2", "release-v1.2", "evt-x", "evt--1"])
def test_an_invalid_event_id_is_refused_with_a_valid_one(cli: InProcessCli, wrong: str) -> None:
    done = cli("send", "--type", "demo.hello", "--id", wrong)
    assert (done.code, done.out) == (1, "")
    assert f"{wrong!r} is not a valid event id: write evt-SOURCE-NAME, such as evt-cli-" in done.err


@pytest.mark.parametrize(
    ("named", "meant"), [("last", LATER), ("001", TASK), ("20260208", LATER), ("task-20260207", TASK), (TASK, TASK)]
)
def test_a_question_is_found_by_any_unique_part_of_its_id(
    cli: InProcessCli, tmp_path: Path, named: str, meant: str
) -> None:
    asking(tmp_path, TASK, LATER)
    answered = cli("answer", named, "yes", "--json")
    assert (answered.code, answered.document["task_id"]) == (0, meant)


def test_an_ambiguous_or_unknown_question_is_reported(cli: InProcessCli, tmp_path: Path) -> None:
    asking(tmp_path, TASK, LATER)
    both = cli("answer", "task-2026", "yes")
    assert (both.code, TASK in both.err, LATER in both.err) == (1, True, True)
    none = cli("answer", "999", "yes")
    assert (none.code, f"999 has no open question; these have one: {TASK}, {LATER}" in none.err) == (1, True)


class Waiting:
    """A sender that waits for the event, and the lines that are printed in the meantime."""

    def __init__(self, realm: Path, capsys: pytest.CaptureFixture[str]) -> None:
        settings = Realm()
        self.printed_so_far: list[str] = []
        self.sources = StatusSources(
            king=KingContext(packages=tuple, zone=settings.zone, settings=settings.king, clock=self._clock),
            settings=settings.chamberlain,
            roles=("king", "general"),
            store=realm,
        )
        self._looks = 0
        self._capsys = capsys

    async def until_printed(self, words: str) -> None:
        async def is_printed() -> bool:
            self.printed_so_far += self._capsys.readouterr().err.splitlines()
            return any(words in line for line in self.printed_so_far)

        await eventually(is_printed)

    async def until_checked(self) -> None:
        enough = self._looks + 2

        async def is_checked() -> bool:
            return self._looks >= enough

        await eventually(is_checked)

    def _clock(self) -> datetime:
        self._looks += 1
        return utc_now()


async def put(bus: Bus, event: ExternalEvent, *records: Record) -> None:
    """Store a new state of the event, and other records."""
    async with bus.transaction() as transaction:
        known, _ = await load(transaction, ExternalEvent, EVENT)
        await save(transaction, event, known)
        for record in records:
            before = await transaction.get(record.kind, record.id)
            await transaction.put(record.replace(version=before.version if before else 0))


async def test_a_waiting_sender_learns_once_what_delays_the_event(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sender = Waiting(tmp_path / "realm", capsys)
    route = {"general": "gen-hello", "rule": "gen-hello#1"}
    async with opened(tmp_path) as bus:
        async with bus.transaction() as transaction:
            await receive_event(transaction, an_event(), "tester")
        waiting = asyncio.create_task(
            wait_for(CommandOutput(json=False), bus, EVENT, sender.sources, patience_seconds=0.0)
        )
        await sender.until_printed(f"{EVENT} is waiting: no role is running, run `kingdom up`")
        # A heartbeat in the future never becomes too old, however slow the machine is.
        for role in sender.sources.roles:
            await FileHeartbeatWriter(tmp_path / "realm", role).beat(utc_now() + timedelta(hours=1))
        await sender.until_printed("the King has not routed it yet")
        held = an_event(routes=[{**route, "waiting": "place"}])
        await put(bus, held, _health(91), _place())
        await sender.until_printed("health is orange (CPU is at 91 %), so no new work starts")
        await put(bus, held, _health(93))
        await sender.until_checked()
        await put(bus, an_event(status=EventStatus.DISPATCHED, routes=[{**route, "task_id": TASK}]))
        await sender.until_printed("no host takes runs")
        await put(bus, an_event(status=EventStatus.COMPLETED, outcome="completed"))
        rest = await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    assert (rest.event.status, rest.ask) == (EventStatus.COMPLETED, None)
    assert set(Counter(sender.printed_so_far).values()) == {1}
    assert sum("health is orange" in line for line in sender.printed_so_far) == 1


async def test_a_long_wait_is_reported_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sender = Waiting(tmp_path / "realm", capsys)
    async with opened(tmp_path) as bus:
        async with bus.transaction() as transaction:
            await receive_event(transaction, an_event(), "tester")
        patience = {"patience_seconds": 0.0, "again_seconds": 0.0}
        waiting = asyncio.create_task(wait_for(CommandOutput(json=False), bus, EVENT, sender.sources, **patience))
        for _ in range(2):
            await sender.until_printed("is waiting: no role is running")
            sender.printed_so_far.clear()
        await put(bus, an_event(status=EventStatus.COMPLETED, outcome="completed"))
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)


def test_ps_shows_waiting_events_when_nothing_runs(cli: InProcessCli) -> None:
    assert cli("send", *HELLO).code == 0
    assert (
        cli("ps").out
        == "Nothing is running, but events wait: kingdom status. To see what has ended: kingdom ps --all\n"
    )
    assert cli("ps", "--json").document == []


def _health(percent: int) -> Record:
    reading = {"level": "orange", "at": utc_now().isoformat(), "reason": f"CPU is at {percent} %"}
    return Record(kind=HEALTH.name, id=CURRENT, state=CURRENT, doc=reading)


def _place() -> Record:
    place = WaitingEntry(event_id=EVENT, general="gen-hello", rule="it", priority=Priority.NORMAL, since=utc_now())
    return Record(
        kind=WAITING_ENTRIES.name, id="place", state=WAITING, indexed={"line": READY}, doc=msgspec.to_builtins(place)
    )
