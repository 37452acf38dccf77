"""What the demo has shown, as it stands in the store and in the books of the stand-ins at the end."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kingdom.court.documents import AssignmentStatus
from kingdom.demo.watching import Answered, Standing

# What people outside see of the whole story, each exactly once.
_ONCE = ("reviews", "comments", "pull_requests", "ticket_comments")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A process that was killed by SIGKILL, and after how long another one had taken its place."""

    what: str
    pid: int
    back_after_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An assignment at the end of the story."""

    task_id: str
    general: str
    status: str
    cost_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A file of the demo that is worth a look; its path begins at the directory of the demo."""

    path: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that the demo has shown; `findings` are what is not as it must be."""

    ok: bool
    seconds: float
    directory: str | None
    has_slack: bool
    question: Answered
    kills: Sequence[Kill]
    checkpoints: Sequence[str]
    resumed_from: str
    assignments: Sequence[Ended]
    cost_usd: float
    # How often people outside saw something of us, as the stand-ins wrote it down.
    outside: Mapping[str, int]
    places: Sequence[Place]
    findings: Sequence[str]


def ended(standing: Standing) -> list[Ended]:
    """Return every assignment with which work began, and what its run has cost."""
    costs = {run.id: run.cost_usd for run in standing.runs}
    return [
        Ended(
            task_id=each.id,
            general=each.target_general,
            status=each.status,
            cost_usd=round(costs.get(each.workflow_id, 0.0), 4),
        )
        for each in standing.assignments
        if not each.root
    ]


def findings(assignments: Sequence[Ended], outside: Mapping[str, int], resumed_from: str) -> Iterator[str]:
    """Yield what is not as it must be: something unfinished, lost, or done twice."""
    for each in assignments:
        if each.status != AssignmentStatus.COMPLETED:
            yield f"{each.task_id} of {each.general} is {each.status}"
    for what in _ONCE:
        if outside[what] != 1:
            yield f"people outside saw {outside[what]} {what.replace('_', ' ')}, not one"
    if not resumed_from:
        yield "no run went back to a checkpoint"


def places(standing: Standing) -> Iterator[Place]:
    """Yield where everything lies."""
    yield Place(path="kingdom.yaml", what="the settings of this court")
    yield Place(path="realm/logs/events.log", what="everything that happened, one line each")
    for task in ended(standing)[:1]:
        yield Place(path=f"realm/queue/tasks/completed/{task.task_id}.json", what=f"the assignment of {task.general}")
        yield Place(path=f"realm/state/results/{task.task_id}.json", what="its result")
        yield Place(path=f"realm/state/prompts/{task.task_id}.md", what="what its agents were asked")
    yield Place(path="realm/generals/gen-review/general.yaml", what="a General: YAML and prompts, no code")
    yield Place(path="outside/github.json", what="what GitHub saw of us")
