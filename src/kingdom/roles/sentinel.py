"""The Sentinel watches GitHub and Jira for events."""

from kingdom.court.package import FollowPolicy
from kingdom.court.petitions.github.access import FOLLOW_PERMISSIONS, MEMBER_PERMISSIONS, TokenScope, github_access
from kingdom.court.sentinel.followed_pulls import PullTokens
from kingdom.court.sentinel.sentinel import Sentinel
from kingdom.court.sentinel.settings import GitHubSettings
from kingdom.roles.context import RoleComponents, RoleContext


def build(context: RoleContext) -> RoleComponents:
    """Return the components of the Sentinel."""

    def follow_policy(general: str) -> FollowPolicy | None:
        package = context.packages.by_name().get(general)
        return package.general.follow if package else None

    settings = context.realm.sentinel
    tokens = _pull_tokens(context, settings.github) if settings.github else None
    return RoleComponents(runnables=(Sentinel(context.bus, settings, tokens=tokens, policies=follow_policy),))


def _pull_tokens(context: RoleContext, settings: GitHubSettings) -> PullTokens:
    """Return a function that returns a token for reading followed pull requests, from the App if there is one."""
    access = github_access(settings)
    context.stack.push_async_callback(access.close)

    async def token_of(repo: str, *, with_members: bool) -> str:
        permissions = {**FOLLOW_PERMISSIONS, **(MEMBER_PERMISSIONS if with_members else {})}
        return await access.token_with(TokenScope.of_permissions(repo, permissions))

    return token_of
