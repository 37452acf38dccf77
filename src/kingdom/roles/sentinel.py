"""The Sentinel watches GitHub and Jira for events."""

from kingdom.court.sentinel.sentinel import Sentinel
from kingdom.roles.context import RoleComponents, RoleContext


def build(context: RoleContext) -> RoleComponents:
    """Return the components of the Sentinel."""
    return RoleComponents(runnables=(Sentinel(context.bus, context.realm.sentinel),))
