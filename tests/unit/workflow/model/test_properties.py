"""Any order of operations, answers, failures and losses causes no contradiction, and every run can end."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kingdom.workflow.model.messages import commands
from kingdom.workflow.model.run.workflow import Placement, StopOutcome
from kingdom.workflow.model.status import MACHINES, StatusMachine, WorkflowStatus
from kingdom.workflow.model.steps.modify import Modification, modify
from kingdom.workflow.model.steps.operations import cancel, start
from kingdom.workflow.model.steps.placement import place
from tests.unit.workflow.model.host import fail, succeed
from tests.unit.workflow.model.scene import APP, DOCS, LIB
from tests.unit.workflow.model.walk import ENDS, WatchedRun, WatchedStep, lead_to, walk

# The seeds of walks that together take every transition. If they no longer do, the fixture walks with more seeds.
_SEEDS = (1269, 956, 805, 283, 343, 225, 408, 0, 5, 44, 277, 790)


@settings(max_examples=50)
@given(data=st.data())
def test_random_operations_contradict_nothing_and_every_run_can_still_be_completed_or_cancelled(
    data: st.DataObject,
) -> None:
    _take_random_operations(data)


@pytest.mark.long
@settings(max_examples=500)
@given(data=st.data())
def test_many_random_operations_contradict_nothing_and_every_run_can_still_end(data: st.DataObject) -> None:
    _take_random_operations(data)


def _take_random_operations(data: st.DataObject) -> None:
    walked = walk(lambda choices: data.draw(st.sampled_from(choices)), data.draw(st.integers(0, 60)))
    workflow = walked.run.workflow
    cancelling = workflow.stop_request is not None and workflow.stop_request.outcome is StopOutcome.CANCEL
    if workflow.status not in ENDS and not cancelling:
        lead_to(walked.run.fork(), WorkflowStatus.COMPLETED)
    if workflow.status not in ENDS:
        walked.run.do(cancel)
        lead_to(walked.run, WorkflowStatus.CANCELLED)


def _take_rare_paths() -> None:
    """Take paths that random walks rarely find.

    A checkout is removed, or its host restarts, before it exists, or a part of a failed command was answered before.
    """
    run = WatchedRun()
    run.do(start)
    run.succeed(commands.PrepareResources)
    run.do(modify, Modification(git_refs=(APP, LIB, DOCS)))
    run.do(modify, Modification(git_refs=(APP, LIB)))
    run.do(modify, Modification(git_refs=(APP, LIB, DOCS)))
    run.do(place, Placement(host="host-a", epoch=2))
    run = WatchedRun()
    run.do(start)
    command = run.take(commands.PrepareResources)
    run.receive(succeed(command)[0], fail(command))


@pytest.fixture(scope="module")
def moves() -> set[tuple[str, str, str]]:
    """Every transition that many random walks make, as the machine and the states before and after."""
    WatchedStep.moves = set()
    _take_rare_paths()
    allowed = sum(len(following) for machine in MACHINES for following in machine.transitions.values())
    for seed in (*_SEEDS, *range(3000)):
        choose = random.Random(seed).choice
        walked = walk(choose, choose(range(5, 60)))
        if walked.run.workflow.status not in ENDS:
            walked.run.do(cancel)
            walked.run.finish()
        if len(WatchedStep.moves) >= allowed:
            break
    return WatchedStep.moves


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_state_is_reached(machine: StatusMachine[Any], moves: set[tuple[str, str, str]]) -> None:
    begun = {first for name, first, _ in moves if name == machine.name}
    reached = {to for name, _, to in moves if name == machine.name}
    # A report that is not required never changes its state.
    assert machine.states - begun - reached <= {"NOT_REQUIRED"}


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_transition_of_the_table_is_taken_and_no_other(
    machine: StatusMachine[Any], moves: set[tuple[str, str, str]]
) -> None:
    allowed = {(first, to) for first, following in machine.transitions.items() for to in following}
    assert {(first, to) for name, first, to in moves if name == machine.name} == allowed


def test_only_final_states_have_no_transition() -> None:
    assert {machine.name: sorted(machine.final) for machine in MACHINES} == {
        "Workflow": ["CANCELLED", "COMPLETED"],
        "Work": ["CANCELLED"],
        "Agent": [],
        "Query": ["CANCELLED"],
        "Report": ["CANCELLED", "NOT_REQUIRED"],
        "Verification": ["CANCELLED"],
        "Checkpoint": [],
        "WorkTree": ["RELEASED"],
    }
