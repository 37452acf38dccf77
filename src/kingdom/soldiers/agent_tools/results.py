"""Read the results of earlier work in the repositories of an agent."""

from collections.abc import Sequence

from kingdom.bus.port import Bus
from kingdom.workflow.model.resources.git import Git
from kingdom.workflow.past_results import PastResult, find_past_results, repo_key
from kingdom.workflow.records import load_resource


async def find_results_of_repositories(bus: Bus, git_ids: Sequence[str], count: int) -> list[PastResult]:
    """Return the newest results of all Generals about the repositories of these Gits."""
    async with bus.transaction() as transaction:
        gits = [(await load_resource(transaction, Git, git_id))[1] for git_id in git_ids]
        repos = dict.fromkeys(git.repo.lower() for git in gits if git.repo)
        found = [each for repo in repos for each in await find_past_results(transaction, repo_key(repo), count)]
    return sorted(found, key=lambda each: each.ended_at, reverse=True)[:count]
