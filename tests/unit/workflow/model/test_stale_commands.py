"""A command is valid only while the run waits for its answer."""

import random
from collections.abc import Callable

import pytest

from kingdom.workflow.model.messages import answers, commands
from kingdom.workflow.model.run.workflow import Placement
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.model.steps.operations import Continue, FromBase, cancel, pause, release, resume, start
from kingdom.workflow.model.steps.placement import place
from kingdom.workflow.model.steps.stale_commands import why_stale
from tests.unit.workflow.model.host import ask, petition, succeed
from tests.unit.workflow.model.scene import Run, started, task, template, work
from tests.unit.workflow.model.walk import Walk

SAME_HOST = Placement(host="host-a", epoch=2)
OTHER_HOST = Placement(host="host-b", epoch=2)


def at_roll_back() -> Run:
    run = started()
    run.until(commands.SendQuery)
    run.open.clear()
    run.do(pause)
    run.succeed(commands.StopAgent)
    run.do(resume, FromBase())
    return run


def at_release() -> Run:
    run = started()
    run.finish()
    run.do(release)
    run.open = run.open[:1]
    return run


def stopping(operation: Callable[..., None]) -> Run:
    run = started()
    run.until(commands.SendQuery)
    run.open.clear()
    run.do(operation)
    return run


def waiting_for(kind: type[commands.HostCommand]) -> Run:
    """Return a run that has just sent such a command and nothing else."""
    if kind is commands.RollBack:
        return at_roll_back()
    if kind is commands.ReleaseWorkTree:
        return at_release()
    if kind in {commands.StopAgent, commands.InterruptAgent}:
        return stopping(pause if kind is commands.StopAgent else cancel)
    run = Run(template(work("one", task(report=True))))
    run.do(start)
    run.until(kind)
    return run


@pytest.fixture(params=commands.COMMANDS, ids=lambda kind: kind.__name__)
def sent(request: pytest.FixtureRequest) -> tuple[Run, commands.HostCommand]:
    """A run, and the one command that it waits for."""
    run = waiting_for(request.param)
    [command] = run.open
    assert isinstance(command, request.param)
    return run, command


def test_a_command_that_was_just_sent_is_valid(sent: tuple[Run, commands.HostCommand]) -> None:
    run, command = sent
    assert why_stale(run.workflow, command) is None


def test_a_command_that_was_answered_is_not_executed_again(sent: tuple[Run, commands.HostCommand]) -> None:
    run, command = sent
    run.receive(*succeed(command))
    name = type(command).__name__
    assert why_stale(run.workflow, command) == f"attempt {command.attempt} of {name} is over"


@pytest.mark.parametrize("placement", [SAME_HOST, OTHER_HOST], ids=["same host", "other host"])
def test_a_command_of_an_earlier_placement_is_ignored(
    sent: tuple[Run, commands.HostCommand], placement: Placement
) -> None:
    run, command = sent
    if run.workflow.status is WorkflowStatus.COMPLETED:
        run.workflow.placement = placement
    else:
        run.do(place, placement)
    now = f"{placement.host}, epoch 2"
    assert why_stale(run.workflow, command) == f"it is for host-a, epoch 1, and the run is placed on {now}"


@pytest.mark.parametrize(
    "kind", [commands.StartAgent, commands.SendQuery, commands.GenerateReport, commands.VerifyWork]
)
def test_commands_to_an_agent_are_stale_once_it_must_end(kind: type[commands.HostCommand]) -> None:
    run = waiting_for(kind)
    [command] = run.open
    run.do(cancel)
    assert why_stale(run.workflow, command) == f"attempt 1 of {kind.__name__} is over"
    assert why_stale(run.workflow, run.open[-1]) is None


@pytest.mark.parametrize("kind", [commands.VerifyWork, commands.TakeCheckpoint])
def test_a_pause_lets_the_last_steps_of_a_work_finish(kind: type[commands.HostCommand]) -> None:
    run = waiting_for(kind)
    run.do(pause)
    assert why_stale(run.workflow, run.take(kind)) is None


def test_a_run_without_a_host_waits_for_no_command() -> None:
    run = waiting_for(commands.PrepareResources)
    command = run.take(commands.PrepareResources)
    assert why_stale(Run(placed=False).workflow, command) == (
        "it is for host-a, epoch 1, and the run is placed on nowhere"
    )


def test_a_question_ends_a_query_and_a_petition_does_not() -> None:
    run = waiting_for(commands.SendQuery)
    command = run.take(commands.SendQuery)
    run.receive(petition(command))
    assert why_stale(run.workflow, command) is None
    run.receive(ask(command))
    assert why_stale(run.workflow, command) == "attempt 1 of SendQuery is over"


def test_a_lookup_of_a_query_is_distinguished_from_the_query() -> None:
    run = waiting_for(commands.SendQuery)
    query = run.take(commands.SendQuery)
    run.do(pause)
    run.succeed(commands.StopAgent)
    run.do(resume, Continue())
    run.succeed(commands.StartAgent)
    reconciling = run.take(commands.SendQuery)
    assert (query.attempt, reconciling.attempt, reconciling.reconcile) == (1, 1, True)
    assert why_stale(run.workflow, query) == "attempt 1 of SendQuery is over"
    assert why_stale(run.workflow, reconciling) is None


class Watched:
    """A walk that remembers all its commands, and checks that each new command is valid."""

    def __init__(self, seed: int) -> None:
        self.walk = Walk(random.Random(seed).choice)
        self.known: list[commands.HostCommand] = []

    def go(self) -> set[type[commands.HostCommand]]:
        """Take one step, and return the kinds of the commands that it sent."""
        before = [id(command) for command in self.walk.run.open]
        self.walk.go()
        run = self.walk.run
        fresh = [command for command in run.open if id(command) not in before]
        self.known += fresh
        for command in fresh:
            assert why_stale(run.workflow, command) is None, command
        return {type(command) for command in fresh}

    def valid(self) -> list[commands.HostCommand]:
        return [command for command in self.known if why_stale(self.walk.run.workflow, command) is None]


def accepts_an_answer(run: Run, command: commands.HostCommand) -> bool:
    """Return whether the run accepts any answer to a command."""
    fork = run.fork()
    received: list[bool] = []
    for answer in succeed(command):
        fork.receive(answer)
        received.append(fork.ignored is None)
    return any(received)


def test_under_random_operations_valid_answers_are_accepted_and_every_wait_has_an_expected_answer() -> None:
    sent: set[type[commands.HostCommand]] = set()
    answered: set[type[commands.HostCommand]] = set()
    for seed in range(250):
        watched = Watched(seed)
        for _ in range(40):
            sent |= watched.go()
            run = watched.walk.run
            valid = watched.valid()
            opened = [id(command) for command in run.open]
            for command in valid:
                # A second command to remove a checkout is allowed.
                assert id(command) in opened or isinstance(command, commands.ReleaseWorkTree), command
                assert accepts_an_answer(run, command), command
            if not run.workflow.is_idle:
                assert [each for each in valid if not isinstance(each, commands.ReleaseWorkTree)], run.workflow
            answered |= {type(command) for command in watched.known if id(command) not in opened}
    assert sent == answered == commands.COMMANDS.keys()


def test_a_stopped_run_has_no_valid_command_except_to_release_checkouts() -> None:
    for seed in range(100):
        watched = Watched(seed)
        for _ in range(40):
            watched.go()
            if watched.walk.run.workflow.is_idle:
                kinds = {type(command) for command in watched.valid()}
                assert kinds <= {commands.ReleaseWorkTree}


def test_an_answer_repeats_the_fields_of_its_command() -> None:
    run = waiting_for(commands.SendQuery)
    command = run.take(commands.SendQuery)
    assert ask(command) == answers.AgentAsked(
        host="host-a",
        epoch=1,
        attempt=1,
        work_id="wf-1-w1",
        task_id="wf-1-w1-t1",
        question="which one?",
        cost_usd=0.25,
    )
