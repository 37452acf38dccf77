"""The Envoy sends messages and questions to people."""

from kingdom.court.envoy.envoy import Envoy
from kingdom.roles.context import RoleComponents, RoleContext


def build(context: RoleContext) -> RoleComponents:
    """Return the components of the Envoy."""
    envoy = Envoy(context.bus, context.realm.envoy, zone=context.realm.zone, metrics=context.metrics)
    return RoleComponents(runnables=(envoy,))
