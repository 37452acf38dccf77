"""Push commits to the branch of a pull request. A commit of another person is never overwritten."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kingdom.bus.effects.effect import Absent, Acked, CallResult, Present, ReconcileResult, Rejected
from kingdom.court.petitions.bodies import GithubPush
from kingdom.court.petitions.github.api import NAME, GithubApi, GraphqlFailed
from kingdom.court.petitions.github.auto_merge import switch_off_auto_merge
from kingdom.court.petitions.http_api import require_body

_NOT_FOUND = 404
# How often a push is tried, if other pushes come first.
_TRIES_MAX = 3
_SHORT = 12
_BRANCH = """\
query($owner: String!, $name: String!, $number: Int!, $ref: String!) {
  repository(owner: $owner, name: $name) {
    id
    ref(qualifiedName: $ref) { target { oid } }
    pullRequest(number: $number) {
      id url state isCrossRepository headRefName headRefOid autoMergeRequest { mergeMethod }
    }
  }
}"""
# REST cannot test which commit the branch has before the update.
_UPDATE = """\
mutation($repository: ID!, $name: GitRefname!, $before: GitObjectID!, $after: GitObjectID!) {
  updateRefs(input: {
    repositoryId: $repository, refUpdates: [{name: $name, beforeOid: $before, afterOid: $after, force: false}]
  }) { clientMutationId }
}"""


class Relation(StrEnum):
    """How a second commit relates to a first one. `UNKNOWN` means that GitHub lacks one of them."""

    IDENTICAL = "identical"
    AHEAD = "ahead"
    BEHIND = "behind"
    DIVERGED = "diverged"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteBranch:
    """A branch on GitHub with its pull request. `head` is empty if the branch was deleted."""

    repository_id: str
    head: str
    pull: dict[str, Any]

    @property
    def last_head(self) -> str:
        """Return the head, or the last one of a deleted branch."""
        return self.head or str(self.pull["headRefOid"])


async def push_commits(api: GithubApi, push: GithubPush) -> CallResult:
    """Move the branch of the pull request forward to our commit, if our commit contains its head."""
    refused = Rejected("")
    for _ in range(_TRIES_MAX):
        branch = await _read_branch(api, push)
        if reason := _why_no_branch(branch, push):
            return Rejected(reason)
        relation = await _compare(api, push.repo, branch.head, push.head_sha)
        if relation in (Relation.IDENTICAL, Relation.BEHIND):
            return Acked(_response(branch, push))
        since_ours = await _compare(api, push.repo, push.before, branch.head)
        if reason := _why_no_push(push, branch.head, relation, since_ours):
            return Rejected(reason)
        try:
            # A person approved the merge of the commits before this push.
            await switch_off_auto_merge(api, push.repo, branch.pull)
            await _move(api, push, branch)
        except GraphqlFailed as failure:
            if not isinstance(failure.result, Rejected):
                raise
            # Another push may have come first, so the branch is read again to say what happened.
            merge = "; the automatic merge is switched off" if branch.pull["autoMergeRequest"] else ""
            refused = Rejected(f"{NAME} refused the push to {push.branch}: {failure.result.reason}{merge}")
        else:
            return Acked(_response(branch, push))
    return refused


async def find_push(api: GithubApi, push: GithubPush) -> ReconcileResult:
    """Return whether the branch contains our commit."""
    branch = await _read_branch(api, push)
    relation = await _compare(api, push.repo, branch.last_head, push.head_sha)
    is_there = relation in (Relation.IDENTICAL, Relation.BEHIND)
    return Present(_response(branch, push)) if is_there else Absent()


async def _read_branch(api: GithubApi, push: GithubPush) -> RemoteBranch:
    owner, _, name = push.repo.partition("/")
    variables = {"owner": owner, "name": name, "number": push.number, "ref": f"refs/heads/{push.branch}"}
    permissions = {"contents": "read", "pull_requests": "read"}
    repository = (await api.graphql(push.repo, permissions, _BRANCH, variables))["repository"]
    ref, pull = repository["ref"], repository["pullRequest"]
    return RemoteBranch(repository_id=repository["id"], head=ref["target"]["oid"] if ref else "", pull=pull)


async def _compare(api: GithubApi, repo: str, first: str, second: str) -> Relation:
    """Return how the second commit relates to the first one."""
    if first == second:
        return Relation.IDENTICAL
    reply = await api.ask(f"/repos/{repo}/compare/{first}...{second}", per_page=1)
    if reply.status == _NOT_FOUND:
        return Relation.UNKNOWN
    return Relation(require_body(reply, dict, NAME)["status"])


async def _move(api: GithubApi, push: GithubPush, branch: RemoteBranch) -> None:
    variables = {
        "repository": branch.repository_id,
        "name": f"refs/heads/{push.branch}",
        "before": branch.head,
        "after": push.head_sha,
    }
    await api.graphql(push.repo, {"contents": "write"}, _UPDATE, variables)


def _why_no_branch(branch: RemoteBranch, push: GithubPush) -> str:
    """Return why the pull request cannot get commits, or ""."""
    pull, name = branch.pull, push.target
    if pull["headRefName"] != push.branch or pull["isCrossRepository"]:
        return f"{name} is not the pull request of {push.branch}, and no other branch is pushed"
    if pull["state"] != "OPEN":
        return f"{name} is {str(pull['state']).lower()}: reopen it, or ask for a new pull request"
    if not branch.head:
        return f"the branch {push.branch} was deleted: restore it on {NAME}, or close {name}"
    return ""


def _why_no_push(push: GithubPush, head: str, relation: Relation, since_ours: Relation) -> str:
    """Return why our commit must not be pushed, or "". `since_ours` is how the head relates to the one we knew."""
    commit, now, ours = (each[:_SHORT] for each in (push.head_sha, head, push.before))
    if relation is Relation.UNKNOWN:
        return f"{NAME} has no commit {commit}: make {push.repo} the checkpoint remote of the repository"
    if since_ours is Relation.BEHIND:
        return (
            f"another person removed commits from {push.branch}, which is at {now} and not at {ours}:"
            " ask that person whether to restore them"
        )
    if since_ours in (Relation.DIVERGED, Relation.UNKNOWN):
        return (
            f"another person rewrote {push.branch}, which is at {now} and no longer contains {ours}:"
            " ask that person how to go on"
        )
    if relation is Relation.AHEAD:
        return ""
    if since_ours is Relation.AHEAD:
        return (
            f"another person pushed commits to {push.branch}, which is at {now}, and {commit} does not contain them:"
            f" take them in with a run that starts at {now}"
        )
    return f"the commit {commit} does not contain {now}, the head of {push.branch}: start the run at {now}"


def _response(branch: RemoteBranch, push: GithubPush) -> dict[str, Any]:
    return {"url": branch.pull["url"], "number": push.number, "commit": push.head_sha}
