"""Set and remove labels of an issue or a pull request on GitHub. Other labels stay as they are."""

from urllib.parse import quote

from kingdom.bus.effects.effect import Absent, Acked, CallResult, Present, ReconcileResult
from kingdom.court.petitions.bodies import GithubLabel
from kingdom.court.petitions.github.api import GithubApi, github_result

_NOT_FOUND = 404


async def change_labels(api: GithubApi, wanted: GithubLabel) -> CallResult:
    """Set and remove labels. A label that is not there is removed already."""
    path = _path(wanted)
    if wanted.labels:
        reply = await api.send(path, {"labels": wanted.labels})
        if not reply.ok:
            return github_result(reply)
    for name in wanted.remove:
        reply = await api.delete(f"{path}/{quote(name, safe='')}")
        if reply.status == _NOT_FOUND:
            # Either the label is not there, or the issue.
            reply = await api.ask(path)
        if not reply.ok:
            return github_result(reply)
    return Acked({"number": wanted.number})


async def find_labels(api: GithubApi, wanted: GithubLabel) -> ReconcileResult:
    """Return whether all labels are as they were requested. GitHub does not distinguish upper and lower case."""
    found = {str(label["name"]).lower() async for label in api.every(_path(wanted))}
    is_done = {name.lower() for name in wanted.labels} <= found and not {name.lower() for name in wanted.remove} & found
    return Present({"number": wanted.number}) if is_done else Absent()


def _path(wanted: GithubLabel) -> str:
    return f"/repos/{wanted.repo}/issues/{wanted.number}/labels"
