"""The Sentinel watches GitHub and Jira for events."""

from kingdom.court.package import FollowPolicy
from kingdom.court.sentinel.sentinel import Sentinel
from kingdom.roles.context import RoleComponents, RoleContext


def build(context: RoleContext) -> RoleComponents:
    """Return the components of the Sentinel."""

    def follow_policy(general: str) -> FollowPolicy | None:
        package = context.packages.by_name().get(general)
        return package.general.follow if package else None

    return RoleComponents(runnables=(Sentinel(context.bus, context.realm.sentinel, policies=follow_policy),))
