"""A pull request that a run opened: its commits and its branch."""

from tests.unit.workflow.model.scene import Run

NUMBER = 2


def commits_become(run: Run, number: int, commit: str) -> None:
    run.workflow.checkpoints[number].commits[run.workflow.work_trees[0].id] = commit


def commit(run: Run, number: int = 1) -> str:
    return run.workflow.checkpoints[number].commits[run.workflow.work_trees[0].id]


def branch(run: Run) -> str:
    return run.workflow.work_trees[0].branch
