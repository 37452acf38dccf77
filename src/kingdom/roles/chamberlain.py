"""The Chamberlain watches the machine, the other roles and the budget."""

from kingdom.bootstrap import operations_of
from kingdom.court.chamberlain.chamberlain import Chamberlain
from kingdom.roles.context import RoleComponents, RoleContext


def build(context: RoleContext) -> RoleComponents:
    """Return the components of the Chamberlain."""
    chamberlain = Chamberlain(
        context.bus,
        operations_of(context.bus),
        context.realm.chamberlain,
        zone=context.realm.zone,
        directory=context.directory,
    )
    return RoleComponents(runnables=(chamberlain,))
