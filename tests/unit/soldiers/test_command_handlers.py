"""Answers to commands carry the placement of the command and keep their contract."""

import asyncio
import threading
from datetime import datetime
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest

from kingdom.bus import Record
from kingdom.errors import ProgramFailed
from kingdom.soldiers.agents.limits import AgentLoops
from kingdom.soldiers.agents.port import AgentFailed, BudgetSpent, UsageLimited
from kingdom.soldiers.checkouts.run_checkouts import CheckoutFailed, RunCheckouts
from kingdom.soldiers.host.command_handlers import COMMAND_HANDLERS
from kingdom.soldiers.host.command_input import CommandInput, report_document_id
from kingdom.soldiers.host.replies import HostContext, answer_to, failure_answers
from kingdom.soldiers.workplace import work_space
from kingdom.soldiers.workplace.host_folders import HostFolders
from kingdom.workflow.model.messages import answers, commands
from tests.fakes.agent_environment import UNCONFINED
from tests.patience import PATIENCE_SECONDS
from tests.unit.soldiers.launching import a_start

WHERE: dict[str, Any] = {"workflow_id": "wf-1", "host": "host-a", "epoch": 3, "attempt": 7}
TREES = tuple(
    commands.WorkTreeRequest(work_tree_id=name, git_id="app", base_branch="main", branch=name) for name in ("t1", "t2")
)
TURN: dict[str, Any] = {"work_id": "w1", "agent_attempt": 1, "task_id": "w1-t1", "report_outline": ()}
SAMPLES: tuple[commands.HostCommand, ...] = (
    commands.PrepareResources(trees=TREES, **WHERE),
    a_start(),
    commands.SendQuery(query="", timeout_seconds=None, **TURN, **WHERE),
    commands.GenerateReport(report_id="w1-t1-report", **TURN, **WHERE),
    commands.VerifyWork(work_id="w1", agent_attempt=1, commands=(), work_tree_ids=(), **WHERE),
    commands.TakeCheckpoint(work_id="w1", checkpoint_id="c1", work_tree_ids=(), **WHERE),
    commands.RollBack(checkpoint_id=None, commits={}, to_base=(), work_space_ids=(), **WHERE),
)


@pytest.mark.parametrize("command", SAMPLES, ids=lambda command: type(command).__name__)
def test_a_failed_command_is_answered_as_its_contract_says(command: commands.HostCommand) -> None:
    (answer,) = failure_answers(command, ProgramFailed("it broke"))
    assert type(answer) in commands.COMMANDS[type(command)].answers
    assert (answer.host, answer.epoch, answer.attempt) == (command.host, command.epoch, command.attempt)
    assert answer.error == "it broke"  # type: ignore[attr-defined]


def test_a_release_that_failed_is_reported() -> None:
    (answer,) = failure_answers(commands.ReleaseWorkTree(work_tree_id="t1", **WHERE), ProgramFailed("it broke"))
    assert isinstance(answer, answers.WorkTreeReleaseFailed)
    assert (answer.work_tree_id, answer.error) == ("t1", "it broke")


def test_every_command_has_a_handler_or_stops_an_agent() -> None:
    assert {*COMMAND_HANDLERS, commands.StopAgent, commands.InterruptAgent} == commands.COMMANDS.keys()


def test_a_failed_checkout_is_named() -> None:
    (answer,) = failure_answers(SAMPLES[0], CheckoutFailed("t2", "no branch"))
    assert isinstance(answer, answers.WorkTreeFailed)
    assert answer.work_tree_id == "t2"


def test_the_answer_to_a_failed_turn_has_its_cost() -> None:
    (answer,) = failure_answers(SAMPLES[2], AgentFailed("too long", 0.5))
    assert isinstance(answer, answers.QueryFailed)
    assert answer.cost_usd == 0.5


def test_the_answer_to_a_failed_turn_says_whether_a_limit_a_budget_or_a_loop_ended_it() -> None:
    until = datetime(2026, 11, 15, 15, tzinfo=ZoneInfo("Asia/Seoul"))
    (limited,) = failure_answers(SAMPLES[2], UsageLimited("usage limit", until, 0.5))
    (broke,) = failure_answers(SAMPLES[3], BudgetSpent("spent", 0.5))
    (looping,) = failure_answers(SAMPLES[2], AgentLoops("ls, ls, ls", 0.5))
    assert isinstance(limited, answers.QueryFailed)
    assert isinstance(broke, answers.ReportFailed)
    assert isinstance(looping, answers.QueryFailed)
    assert limited.throttled_until == until
    assert str(limited.throttled_until) == "2026-11-15 06:00:00+00:00"
    assert (limited.over_budget, broke.over_budget, looping.looping, looping.over_budget) == (False, True, True, False)


def test_the_cost_of_a_turn_is_reported_even_if_its_answer_cannot_be_stored() -> None:
    (answer,) = failure_answers(SAMPLES[2], ProgramFailed("too large"), cost_usd=0.5)
    assert isinstance(answer, answers.QueryFailed)
    assert answer.cost_usd == 0.5


def test_an_error_without_a_message_is_reported_by_its_type_and_a_long_one_by_its_end() -> None:
    (unnamed,) = failure_answers(SAMPLES[2], KeyError())
    (long,) = failure_answers(SAMPLES[2], ProgramFailed("a" * 5000 + "the end"))
    assert isinstance(unnamed, answers.QueryFailed)
    assert isinstance(long, answers.QueryFailed)
    assert unnamed.error == "KeyError"
    assert long.error.endswith("the end")
    assert len(long.error) == 2000


def test_an_answer_repeats_what_it_shares_with_its_command() -> None:
    reply = answer_to(SAMPLES[5], answers.CheckpointCreated, commits={"t1": "abc"})
    assert reply == answers.CheckpointCreated(checkpoint_id="c1", work_id="w1", commits={"t1": "abc"}, **WHERE)


async def test_the_event_loop_is_not_blocked_while_a_work_space_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, going_on = asyncio.get_running_loop(), threading.Event()
    seen: list[bool] = []

    def remove(_: Path) -> None:
        loop.call_soon_threadsafe(going_on.set)
        seen.append(going_on.wait(PATIENCE_SECONDS))

    monkeypatch.setattr(work_space, "remove_work_space", remove)
    folders, nobody = HostFolders(tmp_path), cast("Any", None)
    context = HostContext(
        folders=folders,
        checkouts=RunCheckouts(folders.repositories),
        agents=nobody,
        base_variables={},
        agent_environment=UNCONFINED,
        bus=nobody,
        send=nobody,
    )
    command = commands.RollBack(checkpoint_id=None, commits={}, to_base=(), work_space_ids=("s1",), **WHERE)
    accepted = Record(kind="command", id="c1", state="accepted", indexed={"host": "host-a"}, doc={})
    await COMMAND_HANDLERS[commands.RollBack](
        context,
        CommandInput(
            command=command,
            accepted=accepted,
            general="g",
            work=None,
            home_run="wf-1",
            may_remove_files=False,
            trees={},
            reports={},
        ),
    )
    assert seen == [True]


def test_a_report_file_names_its_document() -> None:
    assert report_document_id("reports/w1-t1-report-a2.md") == "w1-t1-report-a2"
