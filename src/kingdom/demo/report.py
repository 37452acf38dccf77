"""The report at the end of the demo, made from the store and the recorded calls of the stand-ins."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kingdom.court.documents import AssignmentStatus
from kingdom.demo.store_watcher import AnsweredQuestion, DemoState

# The visible calls that the whole scenario makes exactly once each.
_ONCE = ("reviews", "comments", "pull_requests", "ticket_comments")


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledProcess:
    """A process that the demo killed with SIGKILL, and the seconds until another process replaced it."""

    what: str
    pid: int
    back_after_seconds: float


class DemoAssignment(msgspec.Struct, frozen=True, kw_only=True, rename={"assignment_id": "task_id"}):
    """An assignment at the end of the demo."""

    assignment_id: str
    general: str
    status: str
    cost_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFile:
    """A file of the demo that is worth a look; its path is relative to the directory of the demo."""

    path: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """The result of the demo. `findings` lists everything that went wrong, `places` files that are worth a look."""

    ok: bool
    seconds: float
    directory: str | None
    has_slack: bool
    question: AnsweredQuestion
    kills: Sequence[KilledProcess]
    checkpoints: Sequence[str]
    resumed_from: str
    assignments: Sequence[DemoAssignment]
    cost_usd: float
    # The number of visible calls of each kind, as the stand-ins recorded them.
    outside: Mapping[str, int]
    places: Sequence[DemoFile]
    findings: Sequence[str]


def list_assignments(state: DemoState) -> list[DemoAssignment]:
    """Return the first assignment of each run, with the cost of the run."""
    costs = {run.id: run.cost_usd for run in state.runs}
    return [
        DemoAssignment(
            assignment_id=each.id,
            general=each.target_general,
            status=each.status,
            cost_usd=round(costs.get(each.workflow_id, 0.0), 4),
        )
        for each in state.assignments
        if not each.root
    ]


def find_problems(
    assignments: Sequence[DemoAssignment], outside: Mapping[str, int], resumed_from: str
) -> Iterator[str]:
    """Yield every problem: work that is unfinished, lost, or done twice."""
    for each in assignments:
        if each.status != AssignmentStatus.COMPLETED:
            yield f"{each.assignment_id} of {each.general} is {each.status}"
    for what in _ONCE:
        if outside[what] != 1:
            yield f"people outside saw {outside[what]} {what.replace('_', ' ')}, not one"
    if not resumed_from:
        yield "no run went back to a checkpoint"


def list_files(state: DemoState) -> Iterator[DemoFile]:
    """Yield the files that are worth a look."""
    yield DemoFile(path="kingdom.yaml", what="the settings of this court")
    yield DemoFile(path="realm/logs/events.log", what="everything that happened, one line each")
    for each in list_assignments(state)[:1]:
        name = each.assignment_id
        yield DemoFile(path=f"realm/queue/tasks/completed/{name}.json", what=f"the assignment of {each.general}")
        yield DemoFile(path=f"realm/state/results/{name}.json", what="its result")
        yield DemoFile(path=f"realm/state/prompts/{name}.md", what="the prompts of its agents")
    yield DemoFile(path="realm/generals/gen-review/general.yaml", what="a General: YAML and prompts, no code")
    yield DemoFile(path="outside/github.json", what="the state of the GitHub stand-in")
