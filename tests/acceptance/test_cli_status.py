import asyncio
from datetime import timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record
from kingdom.clock import utc_now
from kingdom.court.chamberlain.health import MEMORY, HealthState, next_health
from kingdom.court.chamberlain.settings import HealthSettings
from kingdom.court.documents import Assignment, AssignmentStatus, Priority
from kingdom.court.heartbeat import ROLES, FileHeartbeatWriter
from kingdom.court.king.admission import missing_general_line
from kingdom.court.king.waiting_queue import HELD, READY, WaitingEntry, add_entry
from kingdom.court.questions import HumanQuestion, save_question
from kingdom.court.quota import MONEY, SOLDIERS, Quota, save_quota
from kingdom.court.records import CURRENT, save
from kingdom.workflow.model.resources.host import Host
from kingdom.workflow.records import HOSTS
from tests.acceptance.sample_store import InProcessCli, change_store
from tests.acceptance.terminal import Terminal

SEE, IN = "see chamberlain.health.", "in kingdom.yaml"
ALL = f"{SEE}orange and red {IN}"


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, realm: Path
) -> InProcessCli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KINGDOM_DATABASE_URL", f"file:{realm}")
    return InProcessCli(capsys, monkeypatch)


async def set_health(transaction: Transaction, used: dict[str, float], age_seconds: int = 0) -> None:
    at = utc_now() - timedelta(seconds=age_seconds)
    health, _ = next_health(HealthState(), "here", used, at, HealthSettings())
    await transaction.put(Record(kind="health", id="current", state="current", doc=msgspec.to_builtins(health)))


async def set_quota(transaction: Transaction, scope: str, holders: dict[str, Decimal], spent: int = 0) -> None:
    period = str(utc_now().date()) if scope == MONEY else ""
    quota = Quota(scope=scope, limit=Decimal(1), holders=holders, spent=Decimal(spent), period=period)
    await save_quota(transaction, quota, Record(kind="quota", id=scope, state=CURRENT))


def place(event_id: str, priority: Priority, general: str = "gen-a", reason: str = "") -> WaitingEntry:
    since = utc_now()
    return WaitingEntry(event_id=event_id, general=general, rule="r", priority=priority, since=since, reason=reason)


async def fill(transaction: Transaction) -> None:
    """Create one item of each kind that the status shows."""
    now = utc_now()
    await set_health(transaction, {MEMORY: 65})
    await set_quota(transaction, MONEY, {"task-1": Decimal(5)}, spent=220)
    await set_quota(transaction, SOLDIERS, {"task-1": Decimal(1)})
    await set_quota(transaction, "repo:acme/app", {"task-1": Decimal(1)})
    await add_entry(transaction, place("evt-a-1", Priority.LOW), READY)
    await add_entry(transaction, place("evt-a-2", Priority.HIGH), READY)
    await add_entry(transaction, place("evt-a-3", Priority.LOW), HELD)
    gone = place("evt-a-4", Priority.NORMAL, "gen-gone", "there is no General gen-gone now")
    await add_entry(transaction, gone, missing_general_line("gen-gone"))
    for number, status in enumerate((AssignmentStatus.IN_PROGRESS, AssignmentStatus.NEEDS_HUMAN), start=1):
        given: dict[str, Any] = {"event_id": "evt-a-0", "target_general": "gen-a", "type": "t", "payload": {}}
        assignment = Assignment(id=f"task-{number}", priority=Priority.LOW, created_at=now, status=status, **given)
        await save(transaction, assignment)
    due = now + timedelta(days=1)
    ask = HumanQuestion(
        id="task-2", assignment_id="task-2", general="gen-a", workflow_id="wf", text="May I?", asked_at=now, due_at=due
    )
    await save_question(transaction, ask)


def test_status_shows_what_waits_for_what_and_what_needs_a_person(cli: InProcessCli, realm: Path) -> None:
    change_store(realm, fill)
    assert cli("event", "send", "--type", "demo.hello").code == 0
    assert cli("bus", "pause", "court.result", "--reason", "a look").code == 0
    asyncio.run(FileHeartbeatWriter(realm, "king").beat(utc_now()))
    asyncio.run(FileHeartbeatWriter(realm, "envoy").beat(utc_now() - timedelta(hours=1)))
    done = cli("status", "--json")
    assert done.code == 1
    standing = done.document
    assert (standing["health"]["level"], standing["health"]["reason"]) == ("yellow", "memory_percent: 65")
    assert standing["money"] == {"spent": 220.0, "set_aside": 5.0, "limit": 300.0, "status": "warning"}
    taken = {each["scope"]: (each["held"], each["limit"]) for each in standing["slots"]}
    assert taken == {"soldiers": (1, 3), "repo:acme/app": (1, 1)}
    assert standing["undecided"] == 1
    assert standing["waiting"]["by_priority"] == {"high": 1, "normal": 1, "low": 2}
    assert standing["waiting"]["by_reason"] == {
        "the next round of the King": 1,
        "the machine is short of memory (65 % used)": 1,
        "held back in case a newer event follows": 1,
        "there is no General gen-gone now": 1,
    }
    assert standing["assignments"] == {"pending": 0, "in_progress": 1, "needs_human": 1}
    well = {each["role"]: each["is_well"] for each in standing["roles"]}
    assert well == {role: role == "king" for role in ROLES}
    commands = [trouble["command"] for trouble in standing["troubles"]]
    assert {"kingdom role envoy", "kingdom inbox", "kingdom bus resume court.result"} <= set(commands)
    assert "kingdom general list" in commands
    shown = cli("status")
    assert shown.code == 1
    for words in (
        "see chamberlain.health.yellow in kingdom.yaml",
        "1 question for a person  → kingdom inbox",
        "envoy has had no heartbeat for 1 h",
    ):
        assert words in shown.out
    # All roles that never ran share one line.
    assert "! chamberlain, soldiers, general and sentinel do not run  → kingdom up\n" in shown.out
    assert shown.out.count("chamberlain,") == 1


@pytest.mark.parametrize(
    ("used", "level", "stops", "effect"),
    [
        ({"cpu_percent": 5}, "green", 0, ""),
        (
            {"memory_percent": 61},
            "yellow",
            0,
            "only work that is urgent or has waited for hours starts (see chamberlain.health.yellow in kingdom.yaml)",
        ),
        (
            {"cpu_percent": 65},
            "yellow",
            0,
            "at most 2 runs at once (see chamberlain.health.yellow in kingdom.yaml)",
        ),
        (
            {"cpu_percent": 95},
            "red",
            0,
            "one run at a time (see chamberlain.health.orange and red in kingdom.yaml)",
        ),
        (
            {"disk_percent": 96},
            "orange",
            1,
            "nothing new starts (see chamberlain.health.disk_orange in kingdom.yaml)",
        ),
        (
            {"cpu_percent": 95, "memory_percent": 85},
            "red",
            1,
            f"nothing new starts because of memory_percent: 85 ({SEE}orange {IN}), and one run at a time ({ALL})",
        ),
    ],
)
def test_status_says_which_work_the_health_level_stops_and_which_setting_decides_it(
    cli: InProcessCli, realm: Path, used: dict[str, float], level: str, stops: int, effect: str
) -> None:
    change_store(realm, partial(set_health, used=used))
    standing = cli("status", "--json").document
    assert {**standing["health"], "age_seconds": 0, "reason": ""} == {
        "level": level,
        "reason": "",
        "age_seconds": 0,
        "stops_work": stops,
        "effect": effect,
    }
    assert any("nothing new starts" in trouble["what"] for trouble in standing["troubles"]) == stops


def test_status_reports_an_outdated_health_reading_and_a_spent_budget(cli: InProcessCli, realm: Path) -> None:
    async def act(transaction: Transaction) -> None:
        await set_health(transaction, {MEMORY: 5}, 600)
        await set_quota(transaction, MONEY, {}, spent=300)

    change_store(realm, act)
    standing = cli("status", "--json").document
    assert standing["health"]["level"] == "orange"
    whats = " ".join(trouble["what"] for trouble in standing["troubles"])
    assert "which counts as health level orange" in whats
    assert "raise king.daily_usd" in whats


def test_status_reports_a_machine_short_of_memory_and_a_court_without_roles(cli: InProcessCli, realm: Path) -> None:
    async def act(transaction: Transaction) -> None:
        await set_health(transaction, {MEMORY: 95})
        host = Host(id="vm", epoch=1, slots=3)
        await transaction.put(Record(kind=HOSTS.name, id="vm", state=host.status, doc=msgspec.to_builtins(host)))

    change_store(realm, act)
    assert cli("status", "--json").document["troubles"] == [
        {"what": "no role of the court runs, only an engine or a host", "command": "kingdom up"},
        {
            "what": "health is red (memory_percent: 95): nothing new starts"
            " (see chamberlain.health.orange and red in kingdom.yaml)",
            "command": "kingdom doctor",
        },
    ]


def test_status_fails_without_a_store_and_creates_no_store(cli: InProcessCli, realm: Path) -> None:
    assert cli("status").code == 1
    assert not realm.exists()


def test_status_reads_a_database_too(terminal: Terminal) -> None:
    done = terminal.run("status", "--json")
    assert (done.code, done.document["troubles"]) == (1, [{"what": "nothing runs", "command": "kingdom up"}])
