"""Find the commit of a run for a pull request."""

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from kingdom.bus.port import Transaction
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.run.work_tree import WorkTree
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import GITS


@dataclass(frozen=True, slots=True)
class RunBranch:
    """The branch of a run in a repository, and its base branch. `commit` is empty until a commit can be published."""

    name: str
    commit: str
    base: str


def is_own_branch(name: str, workflow_id: str) -> bool:
    """Return whether a branch was created for this run."""
    return name.startswith(f"kingdom/{workflow_id}/")


async def find_run_branch(
    transaction: Transaction, workflow: Workflow, repo: str, asked_as: Collection[str]
) -> RunBranch | None:
    """Return a run's branch in a repository, or None if the run has no checkout of the repository.

    `asked_as` are the ids of the agents' requests. The commit is known after a requesting Work is finished.
    """
    for tree in workflow.work_trees:
        if tree.is_wanted and await _is_checkout_of(transaction, tree, repo):
            return RunBranch(tree.branch, _find_commit(workflow, tree, asked_as), tree.ref.base_branch)
    return None


def _find_commit(workflow: Workflow, tree: WorkTree, asked_as: Collection[str]) -> str:
    """Return the commit of the newest checkpoint, or "" while the requesting Work is not finished."""
    asking = [work for work in workflow.works if any(each.id in asked_as for each in work.petitions)]
    checkpoints = workflow.valid_checkpoints()
    is_ready = workflow.status is WorkflowStatus.COMPLETED or any(work.is_finished for work in asking)
    return checkpoints[-1].commits.get(tree.id, "") if is_ready and checkpoints else ""


async def _is_checkout_of(transaction: Transaction, tree: WorkTree, repo: str) -> bool:
    record = await transaction.get(GITS.name, tree.ref.git_id)
    return record is not None and msgspec.convert(record.doc, Git).matches(repo)
