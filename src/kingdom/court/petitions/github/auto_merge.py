"""Switch the automatic merge of a pull request on GitHub on or off: on only for the approved commit."""

from collections.abc import Mapping
from typing import Any

from kingdom.bus.effects.effect import Absent, Acked, CallResult, Present, ReconcileResult, Rejected
from kingdom.court.petitions.bodies import GithubAutoMerge
from kingdom.court.petitions.github.api import NAME, GithubApi, GraphqlFailed

_SHORT = 12
_WRITE = {"contents": "write", "pull_requests": "write"}
_PULL = """\
query($owner: String!, $name: String!, $number: Int!) {
  repository(owner: $owner, name: $name) {
    pullRequest(number: $number) { id url state headRefOid autoMergeRequest { mergeMethod } }
  }
}"""
_ENABLE = """\
mutation($pull: ID!, $head: GitObjectID!, $method: PullRequestMergeMethod!) {
  enablePullRequestAutoMerge(input: {pullRequestId: $pull, expectedHeadOid: $head, mergeMethod: $method}) {
    clientMutationId
  }
}"""
_DISABLE = """\
mutation($pull: ID!) {
  disablePullRequestAutoMerge(input: {pullRequestId: $pull}) { clientMutationId }
}"""


async def switch_on_auto_merge(api: GithubApi, wanted: GithubAutoMerge) -> CallResult:
    """Let GitHub merge the approved commit once the pull request meets its requirements."""
    pull = await _read_pull(api, wanted)
    if pull["headRefOid"] != wanted.head_sha:
        return Rejected(
            f"{wanted.target} is at {pull['headRefOid'][:_SHORT]}, and the merge of {wanted.head_sha[:_SHORT]} was"
            " approved: ask for it again"
        )
    if _is_on(pull):
        return Acked(_response(pull, wanted))
    if pull["state"] != "OPEN":
        return Rejected(f"{wanted.target} is closed: reopen it first")
    variables = {"pull": pull["id"], "head": wanted.head_sha, "method": wanted.method}
    try:
        await api.graphql(wanted.repo, _WRITE, _ENABLE, variables)
    except GraphqlFailed as failure:
        if not isinstance(failure.result, Rejected):
            raise
        return Rejected(f"{NAME} refused the automatic merge of {wanted.target}: {failure.result.reason}")
    return Acked(_response(pull, wanted))


async def find_auto_merge(api: GithubApi, wanted: GithubAutoMerge) -> ReconcileResult:
    """Return whether the automatic merge of the approved commit is on, or has merged it."""
    pull = await _read_pull(api, wanted)
    is_done = _is_on(pull) and pull["headRefOid"] == wanted.head_sha
    return Present(_response(pull, wanted)) if is_done else Absent()


async def switch_off_auto_merge(api: GithubApi, repo: str, pull: Mapping[str, Any]) -> None:
    """Switch the automatic merge off, if it is on. `pull` has the fields `id` and `autoMergeRequest`."""
    if pull["autoMergeRequest"]:
        await api.graphql(repo, _WRITE, _DISABLE, {"pull": pull["id"]})


async def _read_pull(api: GithubApi, wanted: GithubAutoMerge) -> dict[str, Any]:
    owner, _, name = wanted.repo.partition("/")
    variables = {"owner": owner, "name": name, "number": wanted.number}
    found = await api.graphql(wanted.repo, {"pull_requests": "read"}, _PULL, variables)
    pull: dict[str, Any] = found["repository"]["pullRequest"]
    return pull


def _is_on(pull: Mapping[str, Any]) -> bool:
    return bool(pull["autoMergeRequest"]) or pull["state"] == "MERGED"


def _response(pull: Mapping[str, Any], wanted: GithubAutoMerge) -> dict[str, Any]:
    return {"url": pull["url"], "number": wanted.number, "commit": wanted.head_sha}
