"""The Sentinel watches GitHub and Jira for events."""

import re
from fnmatch import fnmatchcase

from kingdom.court.package import FollowPolicy
from kingdom.court.petitions.github.access import FOLLOW_PERMISSIONS, MEMBER_PERMISSIONS, TokenScope, github_access
from kingdom.court.sentinel.followed_pulls import PullTokens
from kingdom.court.sentinel.labeled_pulls import LABELED
from kingdom.court.sentinel.sentinel import Sentinel
from kingdom.court.sentinel.settings import GitHubSettings
from kingdom.roles.context import RoleComponents, RoleContext
from kingdom.workflow.model.resources.git import REPOSITORY


def build(context: RoleContext) -> RoleComponents:
    """Return the components of the Sentinel."""

    def follow_policy(general: str) -> FollowPolicy | None:
        package = context.packages.by_name().get(general)
        return package.general.follow if package else None

    def label_repos() -> set[str]:
        subscriptions = [each for package in context.packages.by_name().values() for each in package.general.subscribes]
        wanted = {repo for each in subscriptions if fnmatchcase(LABELED, each.type) for repo in each.repos}
        # The labels of a repository are read one repository at a time, so a glob names none.
        return {repo for repo in wanted if re.fullmatch(REPOSITORY, repo)}

    settings = context.realm.sentinel
    tokens = _pull_tokens(context, settings.github) if settings.github else None
    sentinel = Sentinel(context.bus, settings, tokens=tokens, policies=follow_policy, label_repos=label_repos)
    return RoleComponents(runnables=(sentinel,))


def _pull_tokens(context: RoleContext, settings: GitHubSettings) -> PullTokens:
    """Return a function that returns a token for reading followed pull requests, from the App if there is one."""
    access = github_access(settings)
    context.stack.push_async_callback(access.close)

    async def token_of(repo: str, *, with_members: bool) -> str:
        permissions = {**FOLLOW_PERMISSIONS, **(MEMBER_PERMISSIONS if with_members else {})}
        return await access.token_with(TokenScope.of_permissions(repo, permissions))

    return token_of
