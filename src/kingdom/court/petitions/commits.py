"""Find the commit of a run for a pull request or a push, and the pull requests that may be pushed to."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import msgspec

from kingdom.bus.port import Transaction
from kingdom.court.followups.records import find_followup, followup_id
from kingdom.court.petitions.bodies import PULL_REQUEST, PUSH, GithubPullRequest, GithubPush, stored_body
from kingdom.court.petitions.decision import Petition, PetitionState
from kingdom.court.petitions.records import petitions_of
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.model.run.checkpoint import Checkpoint
from kingdom.workflow.model.run.work_tree import WorkTree
from kingdom.workflow.model.run.workflow import Workflow
from kingdom.workflow.model.status import WorkflowStatus
from kingdom.workflow.records import GITS


@dataclass(frozen=True, slots=True)
class RunBranch:
    """The branch of a run in a repository, and its base branch. `commit` is empty until a commit can be published.

    `changed_paths` is what the commit changed since the run started, or None if that is not known.
    """

    name: str
    commit: str
    base: str
    changed_paths: Sequence[str] | None = None


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
    """Return a pull request that an assignment opened or follows, or None. No other one may be pushed to."""
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
    return found or await _find_followed(transaction, root_id, repo, number)


async def _find_followed(transaction: Transaction, root_id: str, repo: str, number: int) -> OwnPullRequest | None:
    """Return the followed pull request if the assignment is its newest round, or None."""
    known = await find_followup(transaction, followup_id(repo, number))
    followup = known[1] if known else None
    # A round may end its work after its followup has ended.
    return OwnPullRequest(followup.branch, followup.head) if followup and followup.assignment_id == root_id else None


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
            checkpoint = _find_checkpoint(workflow, asked_as)
            commit = checkpoint.commits.get(tree.id, "") if checkpoint else ""
            changed = checkpoint.changed_paths.get(tree.id) if checkpoint else None
            return RunBranch(tree.branch, commit, tree.ref.base_branch, changed)
    return None


def protected_paths(paths: Collection[str], patterns: Collection[str]) -> list[str]:
    """Return the paths that match a pattern. Upper and lower case are the same.

    A pattern without a slash, not counting a final `/**`, matches the name of a file or a folder anywhere. A folder
    includes what is in it.
    """
    return [path for path in paths if any(_is_protected(path.lower(), each.lower()) for each in patterns)]


def _is_protected(path: str, pattern: str) -> bool:
    names, pattern = path.split("/"), pattern.removesuffix("/**").strip("/")
    if "/" not in pattern:
        return any(fnmatchcase(name, pattern) for name in names)
    return any(fnmatchcase("/".join(names[:end]), pattern) for end in range(1, len(names) + 1))


def _find_checkpoint(workflow: Workflow, asked_as: Collection[str]) -> Checkpoint | None:
    """Return the newest checkpoint, or None while the requesting Work is not finished."""
    asking = [work for work in workflow.works if any(each.id in asked_as for each in work.petitions)]
    checkpoints = workflow.valid_checkpoints()
    is_ready = workflow.status is WorkflowStatus.COMPLETED or any(work.is_finished for work in asking)
    return checkpoints[-1] if is_ready and checkpoints else None


async def _is_checkout_of(transaction: Transaction, tree: WorkTree, repo: str) -> bool:
    record = await transaction.get(GITS.name, tree.ref.git_id)
    return record is not None and msgspec.convert(record.doc, Git).matches(repo)
