"""Secrets of MCP servers and of copied files are in no answer of a host about a prompt."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from kingdom.bus import Record
from kingdom.soldiers.agents.port import Prompt
from kingdom.soldiers.checkouts.run_checkouts import RunCheckouts
from kingdom.soldiers.host.command_input import CommandInput
from kingdom.soldiers.host.queries import generate_report, send_query
from kingdom.soldiers.host.replies import HostContext
from kingdom.soldiers.host.reporter import HostReply
from kingdom.soldiers.host.running_agents import AgentSession, RunningAgents
from kingdom.soldiers.redaction import REDACTED, Redaction
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.workflow.model.messages import answers, commands
from kingdom.workflow.model.report_outline import ReportSection
from tests.fakes.agent_environment import UNCONFINED
from tests.fakes.instant_agent import InstantAgents
from tests.fakes.scripts import scripted
from tests.unit.soldiers.launching import a_launch, a_start

SECRET = "sesame-of-the-tracker"  # noqa: S105 - it opens nothing
TASK: dict[str, Any] = {
    "workflow_id": "wf-1",
    "host": "host-a",
    "epoch": 1,
    "attempt": 1,
    "work_id": "w1",
    "agent_attempt": 1,
    "task_id": "w1-t1",
    "report_outline": (),
}


class Scene:
    """A host with one agent whose transcript is not redacted, as that of a vendor."""

    def __init__(self, folder: Path) -> None:
        self.sent: list[HostReply] = []
        self.agents = RunningAgents(InstantAgents(), 1, self._on_gone)
        self.launch = replace(a_launch(folder), redaction=Redaction([SECRET]))
        folders = HostFolders(folder / "host")
        self.context = HostContext(
            folders=folders,
            checkouts=RunCheckouts(folders.repositories),
            agents=self.agents,
            base_variables={},
            agent_environment=UNCONFINED,
            bus=cast("Any", None),
            send=self.sent.append,
        )

    async def ask(self, *steps: dict[str, Any]) -> HostReply:
        """Send a prompt and return the reply."""
        return await send_query(self.context, _input(_query(scripted(*steps), reconcile=False)))

    async def look_up(self) -> HostReply:
        """Look up the result of a prompt and return the reply."""
        return await send_query(self.context, _input(_query("", reconcile=True)))

    async def _on_gone(self, session: AgentSession, reason: str) -> None:
        """Do nothing."""


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path)
    session = await scene.agents.start(scene.launch, a_start(), AsyncExitStack())
    yield scene
    await scene.agents.end(session, timedelta())


def _query(text: str, *, reconcile: bool) -> commands.SendQuery:
    return commands.SendQuery(query=text, timeout_seconds=None, reconcile=reconcile, **TASK)


def _input(command: commands.HostCommand) -> CommandInput[Any]:
    accepted = Record(kind="command", id="c1", state="accepted", indexed={"host": "host-a"}, doc={})
    return CommandInput(
        command=command,
        accepted=accepted,
        general="",
        work=None,
        home_run="wf-1",
        may_remove_files=False,
        trees={},
        reports={},
    )


async def test_the_error_of_a_turn_contains_no_secret(scene: Scene) -> None:
    [failed] = (await scene.ask({"fail": f"the tracker refuses {SECRET}"})).answers
    assert isinstance(failed, answers.QueryFailed)
    assert failed.error == f"the tracker refuses {REDACTED}"


async def test_the_failure_that_an_agent_reports_contains_no_secret(scene: Scene) -> None:
    result = f'{{"status": "failed", "error": "no access with {SECRET}"}}'
    [failed] = (await scene.ask({"write": "result.json", "text": result})).answers
    assert isinstance(failed, answers.QueryFailed)
    assert failed.error == f"the agent reports that it failed: no access with {REDACTED}"


async def test_a_secret_is_removed_from_an_error_before_the_error_is_cut(scene: Scene) -> None:
    [failed] = (await scene.ask({"fail": SECRET + "." * 1990})).answers
    assert isinstance(failed, answers.QueryFailed)
    assert failed.error == REDACTED + "." * 1990


async def test_the_error_of_a_report_contains_no_secret(scene: Scene) -> None:
    outline = (ReportSection(title="Findings", description=scripted({"fail": f"no access with {SECRET}"})),)
    command = commands.GenerateReport(report_id="w1-t1-report", **TASK | {"report_outline": outline})
    [failed] = (await generate_report(scene.context, _input(command))).answers
    assert isinstance(failed, answers.ReportFailed)
    assert failed.error == f"no access with {REDACTED}"


async def test_an_answer_and_petitions_that_are_found_in_the_transcript_contain_no_secret(scene: Scene) -> None:
    petition = {"petition": "github.comment", "body": {"body": SECRET}}
    session = scene.agents.find("w1")
    assert session
    text = scripted(petition, {"answer": f"it is {SECRET}"})
    assert [update async for update in session.agent.send(Prompt(id="w1-t1#1", text=text))]
    assert SECRET in scene.launch.transcript.read_text()
    reply = await scene.look_up()
    assert [document.doc["text"] for document in reply.documents] == [f"it is {REDACTED}"]
    [[petitioned]] = [sent.answers for sent in scene.sent]
    assert isinstance(petitioned, answers.AgentPetitioned)
    assert petitioned.body == {"body": REDACTED}
