"""A store of files with one item of each kind that a command can name, and `kingdom` commands in this process."""

import asyncio
import io
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kingdom.bootstrap import open_bus, operations_of
from kingdom.bus.port import Bus, Transaction
from kingdom.cli.main import main
from kingdom.clock import utc_now
from kingdom.court.documents import Assignment, AssignmentStatus, ExternalEvent, Priority
from kingdom.court.followups.records import Followup, follow_pull_request
from kingdom.court.petitions.decision import Petition
from kingdom.court.petitions.records import save_petition
from kingdom.court.questions import HumanQuestion, save_question
from kingdom.court.records import receive_event, save
from kingdom.court.streams import EVENT_STREAM, event_received
from kingdom.realm import Realm
from kingdom.roles import declare_application
from kingdom.workflow import lifecycle, templates
from kingdom.workflow.model.steps import operations
from kingdom.workflow.records import save_step
from kingdom.workflow.template_file import read_template
from tests.acceptance.terminal import Done

TASK = "task-20260207-001"
AGAIN = "task-20260208-001"
ENDED = "task-20260206-001"
EVENT = "evt-cli-20260207"
PETITION = f"{TASK}-3f9a01bc"
PULL_REQUEST = "acme/app#7"
TEMPLATE = "name: Greet\nworks:\n- name: greet\n  tasks: [Say hello.]\n"


@dataclass(frozen=True)
class SampleStore:
    """The store, and its items with generated ids."""

    realm: Path
    run: str
    dead: str

    @property
    def url(self) -> str:
        return f"file:{self.realm}"


class InProcessCli:
    """Runs commands in this process on one store."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def run_json(self, *words: str, text: str = "") -> Any:
        done = self(*words, "--json", text=text)
        assert done.code == 0, done.err
        return done.document

    def __call__(self, *words: str, text: str = "") -> Done:
        self._monkeypatch.setattr(sys, "argv", ["kingdom", *words])
        piped = io.BytesIO(text.encode("utf-8", "surrogateescape"))
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(piped, encoding="utf-8"))
        code: Any = 0
        mask = os.umask(0o077)
        os.umask(mask)
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        finally:
            # The command has changed the umask of this process.
            os.umask(mask)
        captured = self._capsys.readouterr()
        return Done(code or 0, captured.out, captured.err)


def make_sample_store(realm: Path) -> SampleStore:
    """Make the store."""
    application = declare_application(Realm())

    async def make() -> SampleStore:
        async with open_bus(f"file:{realm}", application.topology, application.kinds) as bus:
            run = await _runs(bus)
            await _store_documents(bus)
            return SampleStore(realm, run, await _dead(bus))

    return asyncio.run(make())


async def _runs(bus: Bus) -> str:
    """Make a run of a person and a run of an assignment. Return the first one."""
    template = await templates.create_template(bus, read_template(TEMPLATE, "greet.yaml"), actor="tester")
    made = await lifecycle.create(bus, template.id, actor="tester", name="By hand")
    async with bus.transaction() as transaction:
        step = operations.create(template, f"wf-{TASK}", utc_now(), name="For the court")
        await save_step(transaction, step, None, "general")
    return made.id


async def _store_documents(bus: Bus) -> None:
    now = utc_now()
    given: dict[str, Any] = {"event_id": EVENT, "target_general": "gen-hello", "type": "demo.hello", "payload": {}}
    event: dict[str, Any] = {
        "id": EVENT,
        "type": "demo.hello",
        "source": "cli",
        "repo": None,
        "payload": {},
        "priority": "normal",
    }
    async with bus.transaction() as transaction:
        for task, status, root, at in (
            (TASK, AssignmentStatus.NEEDS_HUMAN, "", now),
            (AGAIN, AssignmentStatus.IN_PROGRESS, TASK, now),
            (ENDED, AssignmentStatus.COMPLETED, "", now - timedelta(days=1)),
        ):
            document = Assignment(id=task, status=status, root=root, priority=Priority.LOW, created_at=at, **given)
            await save(transaction, document)
        whose: dict[str, Any] = {"general": "gen-hello", "workflow_id": f"wf-{TASK}"}
        await save_question(transaction, _question(TASK))
        kind: dict[str, Any] = {"kind": "github.comment", "target": "acme/app#1", "body": {"body": "Hello."}}
        await save_petition(
            transaction, Petition(id=PETITION, number=1, root=TASK, created_at=now, **kind, **whose), None
        )
        commits: dict[str, Any] = {"branch": "kingdom/it", "base": "main", "head": "c0ffee" + "0" * 34}
        pull: dict[str, Any] = {"id": PULL_REQUEST, "repo": "acme/app", "number": 7, **commits}
        times: dict[str, Any] = {"created_at": now, "ends_at": now + timedelta(days=14)}
        await follow_pull_request(transaction, Followup(assignment_id=TASK, **pull, **times, **whose))
        reported = ExternalEvent.read({**event, "created_at": now.isoformat(), "status": "pending"})
        await receive_event(transaction, reported, "tester")


def change_store(realm: Path, act: Callable[[Transaction], Awaitable[None]]) -> None:
    """Change a store of a court in one transaction."""

    async def run() -> None:
        application = declare_application(Realm())
        async with (
            open_bus(f"file:{realm}", application.topology, application.kinds) as bus,
            bus.transaction() as transaction,
        ):
            await act(transaction)

    asyncio.run(run())


def add_question(realm: Path) -> None:
    """Add a second open question."""

    async def save(transaction: Transaction) -> None:
        await save_question(transaction, _question(AGAIN))

    change_store(realm, save)


def _question(task: str) -> HumanQuestion:
    now = utc_now()
    return HumanQuestion(
        id=task,
        assignment_id=task,
        general="gen-hello",
        workflow_id=f"wf-{TASK}",
        text="May I?",
        choices=("yes", "no", "not; yet", "a\nb"),
        asked_at=now,
        due_at=now + timedelta(days=1),
    )


async def _dead(bus: Bus) -> str:
    envelope = event_received("evt-that-is-gone")
    await bus.publish(envelope)
    await operations_of(bus).cancel(envelope.event_id, EVENT_STREAM.name, actor="tester")
    return str(envelope.event_id)
