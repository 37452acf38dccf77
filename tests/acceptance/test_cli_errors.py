"""Errors that a command finds when it runs are one sentence with the next step."""

import shutil
from pathlib import Path

import msgspec
import pytest

from kingdom.bus.port import Transaction
from kingdom.bus.record import Record, RecordQuery
from kingdom.court.documents import AssignmentStatus, EventStatus
from kingdom.court.followups.records import FOLLOWUPS
from kingdom.court.petitions.decision import PETITIONS
from kingdom.court.records import ASSIGNMENTS, EVENTS
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import WORKFLOWS
from tests.acceptance.sample_store import ENDED, TASK, InProcessCli, SampleStore, change_store


@pytest.fixture
def cli_on_copy(sample: SampleStore, cli: InProcessCli, tmp_path: Path) -> InProcessCli:
    """Commands on a copy of the sample store, in the directory `realm`."""
    shutil.copytree(sample.realm, tmp_path / "realm")
    return cli


async def add_more(transaction: Transaction) -> None:
    """Add a copy of each event, petition and followup."""
    for kind in (EVENTS, PETITIONS, FOLLOWUPS):
        for record in await transaction.find(RecordQuery(kind=kind.name)):
            copy = f"{record.id}1"
            await transaction.put(msgspec.structs.replace(record, id=copy, version=0, doc={**record.doc, "id": copy}))


async def add_unreadable(transaction: Transaction) -> None:
    """Add an unreadable event, assignment and run, and an event that was routed to the assignment."""
    for kind, record_id, state in (
        (EVENTS, "evt-unreadable", EventStatus.COMPLETED),
        (ASSIGNMENTS, "task-unreadable", AssignmentStatus.COMPLETED),
        (WORKFLOWS, "wf-unreadable", WorkflowStatus.COMPLETED),
    ):
        await transaction.put(Record(kind=kind.name, id=record_id, state=state, doc={"id": record_id}))
    [event] = await transaction.find(RecordQuery(kind=EVENTS.name, state=EventStatus.PENDING))
    routes = [{"general": "gen-hello", "rule": "demo.hello", "task_id": "task-unreadable"}]
    doc = {**event.doc, "id": "evt-routed", "routes": routes}
    await transaction.put(msgspec.structs.replace(event, id="evt-routed", version=0, doc=doc))


def test_an_inaccessible_file_is_named_with_the_reason(cli: InProcessCli, tmp_path: Path) -> None:
    (tmp_path / "kingdom.yaml").write_text("{}\n")
    (tmp_path / "realm/up.lock").mkdir(parents=True)
    done = cli("up")
    assert (done.code, done.out) == (1, "")
    step = "correct this, then run the command again"
    assert done.err == f"kingdom: realm/up.lock is not accessible (Is a directory): {step}\n"


def test_a_revoked_credential_that_does_not_exist_names_a_command_that_does(cli_on_sample: InProcessCli) -> None:
    for group in ("token", "sessions"):
        missing = cli_on_sample("web", group, "revoke", "nosuch")
        assert (missing.code, f"`kingdom web {group} list` shows all" in missing.err) == (1, True)


@pytest.mark.parametrize("url", ["", "nosuch.example", "ftp://nosuch.example", "http://[::1"])
def test_an_invalid_url_of_a_server_is_refused(cli: InProcessCli, url: str) -> None:
    done = cli("bus", "tail", "--url", url)
    assert (done.code, "write https://HOST" in done.err) == (2, True)


def test_a_token_that_is_no_text_is_refused(cli: InProcessCli, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    done = cli("bus", "tail", "--url", "http://127.0.0.1:1", "--token-file", "token")
    assert (done.code, "kingdom web token create" in done.err) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        ("git", "create", "app", "/nowhere", "--no-check"),
        ("web", "token", "create", "ci"),
        ("web", "invite", "dana"),
        ("bus", "publish", "--stream", "orders", "--type", "OrderPlaced"),
    ],
)
def test_no_second_store_is_created_below_a_realm(
    cli: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    (tmp_path / "kingdom.yaml").write_text("{}\n")
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path / "docs")
    refused = cli(*words)
    assert (refused.code, list((tmp_path / "docs").iterdir())) == (1, [])
    assert f"the realm is in {tmp_path}: run this there, or with --config {tmp_path}/kingdom.yaml" in refused.err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("event", "list"), "events"),
        (("assignment", "list"), "assignments"),
        (("petition", "list"), "petitions"),
        (("petition", "list", TASK), "petitions"),
        (("followup", "list"), "followups"),
    ],
)
def test_a_list_says_that_older_items_are_not_shown(
    cli_on_copy: InProcessCli, tmp_path: Path, words: tuple[str, ...], what: str
) -> None:
    note = f"Older {what} are not shown: add --limit 2\n"
    change_store(tmp_path / "realm", add_more)
    assert cli_on_copy(*words, "--limit", "1").err == note
    assert cli_on_copy(*words, "--limit", "2").err == (note.replace("2", "4") if what == "assignments" else "")


def test_ps_says_that_older_entries_are_not_shown(cli_on_sample: InProcessCli) -> None:
    assert "Older ones are not shown: add --limit 2. " in cli_on_sample("ps", "--limit", "1").out
    assert "Older ones" not in cli_on_sample("ps").out


def test_an_assignment_without_a_run_has_no_petitions(cli_on_sample: InProcessCli) -> None:
    assert cli_on_sample.run_json("petition", "list", ENDED) == []
    assert cli_on_sample("petition", "list", "task-20990101-001").code == 1


def test_an_unreadable_record_is_left_out_with_a_note(cli_on_copy: InProcessCli, tmp_path: Path) -> None:
    change_store(tmp_path / "realm", add_unreadable)
    simulated = cli_on_copy("simulate")
    assert (simulated.code, "evt-unreadable is left out" in simulated.err) == (0, True)
    why = cli_on_copy("why", "evt-routed")
    assert (why.code, "task-unreadable is left out" in why.err) == (0, True)
    logs = cli_on_copy("logs", "soldier-1790000000-123456")
    assert (logs.code, "wf-unreadable is left out" in logs.err, "no run has a soldier" in logs.err) == (1, True, True)


@pytest.mark.parametrize("option", [("--slots", "2"), ("--agent", "claude"), ("--sandbox", "off"), ("--name", "box")])
def test_an_engine_without_a_host_refuses_options_about_a_host(cli: InProcessCli, option: tuple[str, str]) -> None:
    refused = cli("role", "engine", *option)
    assert (refused.code, "add --host" in refused.err) == (2, True)


def test_the_view_of_changing_files_has_no_json(cli_on_sample: InProcessCli) -> None:
    refused = cli_on_sample("attach", "last", "--files", "--json")
    assert (refused.code, "kingdom diff --json" in refused.err) == (2, True)


def test_an_invite_notes_that_no_server_runs_here(cli: InProcessCli, tmp_path: Path) -> None:
    (tmp_path / "kingdom.yaml").write_text("{}\n")
    assert "No web server runs on this machine" in cli("web", "invite", "dana").err
    (tmp_path / "kingdom.yaml").write_text("web: {url: https://kingdom.example}\n")
    assert cli("web", "invite", "dana").err == ""


def test_a_former_name_of_a_command_is_not_called_a_short_one(cli: InProcessCli) -> None:
    former = cli("engine", "--help")
    assert former.out.startswith("`kingdom engine` is the former name of `kingdom role engine`.\n")
