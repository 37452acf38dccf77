"""Check that the pictures of the concepts show the states and transitions of the code."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, get_args, get_type_hints
from xml.etree import ElementTree as ET

import pytest

from kingdom.bus.operations import Situation
from kingdom.court.documents import AssignmentStatus, EventStatus
from kingdom.court.heartbeat import ROLES
from kingdom.court.petitions.decision import PetitionState
from kingdom.workflow.model.resources.host import HostStatus
from kingdom.workflow.model.status import (
    AGENT,
    CHECKPOINT,
    WORKFLOW,
    AgentStatus,
    CheckpointStatus,
    StatusMachine,
    TaskStatus,
    WorkflowStatus,
    WorkStatus,
)
from tests.documentation.surroundings import ROOT

IMAGES = ROOT / "docs" / "images"
_SVG = "{http://www.w3.org/2000/svg}"
_STEP = re.compile(r"(?P<before>.+) → (?P<after>.+)")

SHOWN: dict[str, tuple[Iterable[str], ...]] = {
    "event": (EventStatus,),
    "assignment": (AssignmentStatus,),
    "run": (WorkflowStatus, WorkStatus, TaskStatus),
    "checkpoint": (CheckpointStatus,),
    "soldier": (AgentStatus, HostStatus),
    "petition": (PetitionState,),
    "store": (get_args(get_type_hints(Situation)["status"]),),
    "roles": (ROLES,),
}
MACHINES: dict[str, StatusMachine[Any]] = {"run": WORKFLOW, "checkpoint": CHECKPOINT, "soldier": AGENT}


def drawn(picture: str, element: str) -> Iterator[ET.Element]:
    return ET.parse(IMAGES / f"{picture}.svg").iter(f"{_SVG}{element}")  # noqa: S314 - our own files


def words_of(picture: str) -> set[str]:
    return {word.strip(",:;.") for text in drawn(picture, "text") for word in (text.text or "").split()}


def steps_of(picture: str) -> set[tuple[str, str]]:
    titles = [title.text or "" for path in drawn(picture, "path") for title in path.iter(f"{_SVG}title")]
    found = [match for match in map(_STEP.fullmatch, titles) if match]
    assert len(found) == len(titles), "a title of an arrow names the states that it leads from and to"
    return {
        (before, after)
        for match in found
        for before in match["before"].split(", ")
        for after in match["after"].split(", ")
    }


@pytest.mark.parametrize("picture", SHOWN)
def test_a_picture_names_every_state_of_the_objects_that_it_shows(picture: str) -> None:
    words = {word.lower() for word in words_of(picture)}
    missing = [str(state) for states in SHOWN[picture] for state in states if str(state).lower() not in words]
    assert missing == []


@pytest.mark.parametrize("picture", MACHINES)
def test_the_arrows_of_a_picture_are_the_transitions_of_its_state_machine(picture: str) -> None:
    machine = MACHINES[picture]
    possible = {(str(before), str(after)) for before, following in machine.transitions.items() for after in following}
    assert steps_of(picture) == possible


@pytest.mark.parametrize("picture", sorted(SHOWN.keys() - MACHINES.keys()))
def test_arrows_lead_from_states_to_states(picture: str) -> None:
    states = {str(state) for states in SHOWN[picture] for state in states}
    assert {state for step in steps_of(picture) for state in step} <= states


@pytest.mark.parametrize("picture", sorted(path.stem for path in IMAGES.glob("*.svg")))
def test_a_picture_loads_nothing_from_elsewhere(picture: str) -> None:
    text = (IMAGES / f"{picture}.svg").read_text()
    addresses = set(re.findall(r"""(?:href|src)="([^"#][^"]*)"|url\(([^)#][^)]*)\)|@import""", text))
    assert addresses == set()
