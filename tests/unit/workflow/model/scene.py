"""A run without a host: it collects the commands of the run, and the test chooses the answers."""

import copy
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from kingdom.workflow.model.messages import answers, commands
from kingdom.workflow.model.messages.events import DomainEvent
from kingdom.workflow.model.references import GitRef
from kingdom.workflow.model.report_outline import ReportSection
from kingdom.workflow.model.resources.template import (
    RunPolicy,
    TaskDefinition,
    WorkDefinition,
    WorkflowTemplate,
)
from kingdom.workflow.model.run.work import Task, Work
from kingdom.workflow.model.run.workflow import Placement, Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.model.steps.operations import create, prepare, start
from kingdom.workflow.model.steps.placement import place
from kingdom.workflow.model.steps.step import Step
from kingdom.workflow.reactions import ANSWERS
from tests.unit.workflow.model.host import fail, succeed
from tests.unit.workflow.model.invariants import contradictions

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
APP = GitRef(git_id="git-app", base_branch="main")
LIB = GitRef(git_id="git-lib", base_branch="main")
DOCS = GitRef(git_id="git-docs", base_branch="main")
OUTLINE = (ReportSection(title="Findings", description="what was found"),)


def task(query: str = "do it", *, report: bool = False) -> TaskDefinition:
    return TaskDefinition(query=query, report_outline=OUTLINE if report else ())


def work(name: str, *tasks: TaskDefinition, **more: Any) -> WorkDefinition:
    return WorkDefinition(name=name, tasks=tasks or (task("first"), task("second")), **more)


def template(*works: WorkDefinition, **more: Any) -> WorkflowTemplate:
    fields: dict[str, Any] = {"id": "tpl", "name": "Fix the bug", "git_refs": (APP, LIB)} | more
    return WorkflowTemplate(works=works or (work("analyse"), work("build"), work("check")), **fields)


def without_costs(workflow: Workflow) -> dict[str, Any]:
    """Return a run without its costs, which count however late they are reported."""
    document = workflow.document()
    for each in document["works"]:
        del each["costUsd"], each["turnCosts"]
    return document


class Run:
    """One run, stored and read again after every step, with its unanswered commands."""

    step_class: type[Step] = Step

    def __init__(
        self,
        made_from: WorkflowTemplate | None = None,
        *,
        retries: int = 0,
        placed: bool = True,
        policy: RunPolicy | None = None,
    ) -> None:
        self.at = NOON
        self.published: list[DomainEvent] = []
        self.open: list[commands.HostCommand] = []
        self.ignored: str | None = None
        made = msgspec.structs.replace(made_from or template(), policy=policy or RunPolicy(retries=retries))
        first = create(made, "wf-1", self.at)
        self.workflow = first.workflow
        self._keep(first)
        if placed:
            self.do(place, Placement(host="host-a", epoch=1))

    def do(self, operation: Callable[..., None], *arguments: Any) -> list[str]:
        """Take one step and return the names of the published events."""
        self.at += timedelta(seconds=1)
        step = self.step_class(self.workflow, at=self.at)
        before = without_costs(self.workflow)
        operation(step, *arguments)
        if step.ignored:
            assert (without_costs(step.workflow), step.events, step.commands) == (before, [], [])
        return self._keep(step)

    def receive(self, *received: answers.HostAnswer) -> list[str]:
        """Apply answers of the host and return the names of the published events."""
        names: list[str] = []
        for answer in received:
            self.published.append(answer)
            names += self.do(ANSWERS[type(answer)], answer)
        return names

    def take(self, kind: type[commands.HostCommand]) -> Any:
        """Remove and return the one open command of a kind."""
        [command] = [command for command in self.open if isinstance(command, kind)]
        self.open.remove(command)
        return command

    def succeed(self, kind: type[commands.HostCommand]) -> list[str]:
        """Answer the one open command of a kind with success."""
        return self.receive(*succeed(self.take(kind)))

    def fail(self, kind: type[commands.HostCommand]) -> list[str]:
        """Answer the one open command of a kind with a failure."""
        return self.receive(fail(self.take(kind)))

    def until(self, kind: type[commands.HostCommand], work_index: int | None = None) -> Any:
        """Answer commands with success until a command of this kind is open, for the given Work if any."""
        for _ in range(200):
            for command in self.open:
                if isinstance(command, kind) and (
                    work_index is None or getattr(command, "work_id", "") == self.workflow.works[work_index].id
                ):
                    return command
            self.receive(*succeed(self.open.pop(0)))
        raise AssertionError(f"no {kind.__name__} came; open: {self.open}")

    def finish(self) -> Workflow:
        """Succeed with everything until nothing is open."""
        for _ in range(1000):
            if not self.open:
                return self.workflow
            self.receive(*succeed(self.open.pop(0)))
        raise AssertionError("the run always sends another command")

    def fork(self) -> "Run":
        """Return a copy that can go another way."""
        other = copy.copy(self)
        other.workflow = Workflow.read(self.workflow.document())
        other.published, other.open = list(self.published), list(self.open)
        return other

    def names(self) -> list[str]:
        """Return the names of all events of the run and of all answers of its host."""
        return [type(event).__name__ for event in self.published]

    def commanded(self) -> list[str]:
        """Return the names of the open commands."""
        return [type(command).__name__ for command in self.open]

    def status(self) -> WorkflowStatus:
        return self.workflow.status

    def work(self, index: int) -> Work:
        return self.workflow.works[index]

    def task(self, work_index: int, index: int) -> Task:
        return self.work(work_index).tasks[index]

    def _keep(self, step: Step) -> list[str]:
        self.ignored = step.ignored
        self.published += step.events
        self.open += step.commands
        document = json.loads(json.dumps(step.workflow.document()))
        self.workflow = Workflow.read(document)
        assert self.workflow == step.workflow
        found = contradictions(self.workflow)
        assert not found, found
        return [type(event).__name__ for event in step.events]


def started(made_from: WorkflowTemplate | None = None, *, retries: int = 0, policy: RunPolicy | None = None) -> Run:
    """Return a run whose checkouts are prepared and whose first agent is requested."""
    run = Run(made_from, retries=retries, policy=policy)
    run.do(start)
    run.succeed(commands.PrepareResources)
    return run


def ready() -> Run:
    """Return a run whose checkouts are prepared and which has not started."""
    run = Run()
    run.do(prepare)
    run.succeed(commands.PrepareResources)
    return run


def running() -> Run:
    """Return a run whose first agent is running."""
    run = started()
    run.succeed(commands.StartAgent)
    return run
