"""A random walk through a run: any order of operations, answers, questions, failures and losses."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from kingdom.errors import IllegalTransition, Misconfigured, NotFound
from kingdom.workflow.model.messages import answers, commands
from kingdom.workflow.model.resources.template import OverBudget, RunPolicy
from kingdom.workflow.model.run.workflow import GO_ON, Placement
from kingdom.workflow.model.status import WORK, WORKFLOW, WorkflowStatus
from kingdom.workflow.model.steps.modify import Modification, WorkChange, modify
from kingdom.workflow.model.steps.operations import (
    Auto,
    Continue,
    FromBase,
    FromCheckpoint,
    cancel,
    pause,
    prepare,
    release,
    resume,
    start,
)
from kingdom.workflow.model.steps.placement import place
from kingdom.workflow.model.steps.step import HasStatus, Step
from tests.unit.workflow.model.host import (
    agent_of,
    ask,
    budget_spent,
    fail,
    looping,
    petition,
    reconciled,
    spent,
    succeed,
    throttled,
)
from tests.unit.workflow.model.scene import APP, DOCS, LIB, NOON, Run, task, template, work

Choice = Callable[[Sequence[Any]], Any]
ENDS = WORKFLOW.final


class WatchedStep(Step):
    """Records every transition of every status machine."""

    moves: ClassVar[set[tuple[str, str, str]]] = set()

    def transition(self, part: HasStatus, to: Any, part_id: str) -> None:
        before = part.status
        super().transition(part, to, part_id)
        self.moves.add((part.machine.name, before, to))

    def update_work_statuses(self) -> None:
        before = {work.id: work.status for work in self.workflow.works}
        super().update_work_statuses()
        for each in self.workflow.works:
            if before[each.id] is not each.status:
                self.moves.add((WORK.name, before[each.id], each.status))


class WatchedRun(Run):
    step_class = WatchedStep


class Walk:
    """One run, driven by random choices. A refusal must be a proper error and change nothing."""

    def __init__(self, choose: Choice) -> None:
        self.choose = choose
        gate = choose([False, False, True])
        works = (
            work("one", task(report=True), task()),
            work("two", task(), task(report=True), pause_after=gate, git_refs=(LIB,)),
            work("three", task()),
        )
        policy = RunPolicy(
            retries=choose([0, 0, 1]),
            budget_usd=choose([None, None, 0.6]),
            over_budget=choose(list(OverBudget)),
        )
        self.run = WatchedRun(template(*works, git_refs=choose([(APP,), ()])), policy=policy)
        self.old: list[answers.HostAnswer] = []

    def go(self) -> None:
        doings = [self.answer] * 12 + [self.fail, self.hold_up, self.repeat, self.operate, self.end_agent]
        self.choose(doings)()

    def answer(self) -> None:
        if self.run.open:
            command = self._pick()
            if not isinstance(command, commands.SendQuery):
                self._receive(succeed(command))
            elif command.reconcile:
                self._receive([reconciled(command, self.choose(list(answers.TranscriptFinding)))])
            else:
                asked = [[ask(command)], [petition(command), ask(command)]]
                held_up = [
                    [throttled(command, NOON)],
                    [budget_spent(command, 0.5)],
                    [looping(command)],
                    [spent(command, 0.2), fail(command)],
                ]
                self._receive(self.choose([*[succeed(command)] * 12, *asked, *asked, *held_up]))
        elif self.run.workflow.status not in ENDS:
            self.operate()

    def fail(self) -> None:
        if self.run.open:
            command = self._pick()
            failure = fail(command)
            if isinstance(command, commands.PrepareResources):
                failure = msgspec.structs.replace(failure, work_tree_id=self.choose(command.trees).work_tree_id)
            self._receive([failure])

    def hold_up(self) -> None:
        """Let a report wait for more budget or for the vendor."""
        command = self.run.open[0] if self.run.open else None
        if isinstance(command, commands.GenerateReport):
            self.run.open.remove(command)
            self._receive([self.choose([throttled(command, NOON), budget_spent(command, 0.5)])])

    def repeat(self) -> None:
        """Repeat an old answer, which may be late, a duplicate or from a lost placement."""
        if self.old:
            self.run.receive(self.choose(self.old))

    def end_agent(self) -> None:
        """Let an agent end by itself."""
        for each in self.run.workflow.works:
            placement = self.run.workflow.placement
            if each.agent.alive and placement:
                agent = agent_of(each.id, each.agent.attempt)
                agent = msgspec.structs.replace(agent, host=placement.host, epoch=placement.epoch)
                self._receive(self.choose([succeed(agent), [fail(agent, "killed")]]))

    def operate(self) -> None:
        often = [self._start, self._resume, self._resume, self._modify]
        seldom = [self._start, self._prepare, self._pause, self._resume, self._cancel, self._modify]
        operation = self.choose([*often, *seldom, self._place, self._release])
        before = self.run.workflow.document()
        try:
            operation()
        except (IllegalTransition, Misconfigured, NotFound):
            assert self.run.workflow.document() == before

    def _pick(self) -> commands.HostCommand:
        """Remove and return a command to answer: the first one of the main stream, or any stop command."""
        control = [command for command in self.run.open if command.stream.endswith(".control")]
        others = [command for command in self.run.open if command not in control][:1]
        command = self.choose(control + others)
        self.run.open.remove(command)
        assert isinstance(command, commands.HostCommand)
        return command

    def _receive(self, received: list[answers.HostAnswer]) -> None:
        self.old += received
        self.run.receive(*received)

    def _start(self) -> None:
        self.run.do(start)

    def _prepare(self) -> None:
        self.run.do(prepare)

    def _pause(self) -> None:
        self.run.do(pause)

    def _cancel(self) -> None:
        # Seldom, since it ends the walk.
        if self.choose([True, False, False]):
            self.run.do(cancel)

    def _release(self) -> None:
        self.run.do(release)

    def _resume(self) -> None:
        chosen = [FromCheckpoint(checkpoint.id) for checkpoint in self.run.workflow.checkpoints]
        self.run.do(resume, self.choose([Auto(), FromBase(), Continue(), Continue("yes"), Continue(GO_ON), *chosen]))

    def _place(self) -> None:
        before = self.run.workflow.placement
        epoch = before.epoch if before else 0
        host = self.choose(["host-a", "host-b"])
        self.run.do(place, Placement(host=host, epoch=epoch + self.choose([0, 1, 1, 1])))

    def _modify(self) -> None:
        works = [WorkChange(id=each.id, definition=each.definition) for each in self.run.workflow.works]
        if self.choose([True, False]):
            definition = work("more", task(self.choose(["a", "b"])), git_refs=self.choose([(), (DOCS,)]))
            extra = [WorkChange(definition=definition)] if len(works) < 5 else []
            works = self.choose([works + extra, works[:-1], [*works[:-2], *works[:-3:-1]], [*works[:-1], *extra]])
        refs = self.choose([None, (), (APP,), (APP, DOCS), (DOCS,)])
        self.run.do(modify, Modification(works=tuple(works), git_refs=refs))


def walk(choose: Choice, steps: int) -> Walk:
    walked = Walk(choose)
    for _ in range(steps):
        walked.go()
    return walked


def resume_with_grant(step: Step) -> None:
    resume(step, Auto(), grants=True)


def lead_to(run: Run, end: WorkflowStatus) -> None:
    """Answer all commands and request allowed operations until the run has this final status."""
    for _ in range(20):
        run.finish()
        if run.workflow.status in ENDS:
            break
        if end is WorkflowStatus.CANCELLED:
            run.do(cancel)
        elif run.workflow.status in {WorkflowStatus.CREATED, WorkflowStatus.READY}:
            run.do(start)
        else:
            run.do(resume_with_grant)
    assert run.workflow.status is end
