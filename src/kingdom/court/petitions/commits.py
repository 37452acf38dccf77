"""Find the commit of a run for a pull request or a push, and the pull requests that may be pushed to."""

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from kingdom.bus.port import Transaction
from kingdom.court.petitions.bodies import PULL_REQUEST, PUSH, GithubPullRequest, GithubPush, stored_body
from kingdom.court.petitions.decision import Petition, PetitionState
from kingdom.court.petitions.records import petitions_of
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


@dataclass(frozen=True, slots=True)
class OwnPullRequest:
    """A pull request that we opened: its branch, and the head of the branch that we last saw."""

    branch: str
    head: str


def is_own_branch(name: str, workflow_id: str) -> bool:
    """Return whether a branch was created for this run."""
    return name.startswith(f"kingdom/{workflow_id}/")


async def find_own_pull_request(
    transaction: Transaction, root_id: str, repo: str, number: int
) -> OwnPullRequest | None:
    """Return a pull request that an assignment opened, or None. Only such a pull request may be pushed to."""
    found: OwnPullRequest | None = None
    for petition in await petitions_of(transaction, root_id):
        if petition.state is not PetitionState.PERFORMED:
            continue
        if petition.kind == PULL_REQUEST and petition.response.get("number") == number:
            pull = stored_body(GithubPullRequest, petition.body)
            if pull.repo == repo and is_own_branch(pull.head, petition.workflow_id):
                found = OwnPullRequest(pull.head, pull.head_sha)
        elif found and _is_push_to(petition, repo, number):
            found = OwnPullRequest(found.branch, stored_body(GithubPush, petition.body).head_sha)
    return found


def _is_push_to(petition: Petition, repo: str, number: int) -> bool:
    return petition.kind == PUSH and (petition.body["repo"], petition.body["number"]) == (repo, number)


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
