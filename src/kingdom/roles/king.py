"""The King turns events into assignments."""

from kingdom.bus.dispatcher import Dispatcher
from kingdom.bus.worker import Worker
from kingdom.court.king.reactions import STREAMS, register
from kingdom.court.king.terms import Terms
from kingdom.court.king.watch import watch
from kingdom.roles.context import RoleComponents, RoleContext


def build(context: RoleContext) -> RoleComponents:
    """Return the components of the King."""
    dispatcher, realm = Dispatcher(), context.realm
    terms = Terms(settings=realm.king, packages=context.packages.all, zone=realm.zone)
    register(dispatcher, terms)
    # Every decision writes the quotas, so concurrent decisions would only conflict.
    worker = Worker(context.bus, dispatcher, STREAMS, concurrency=1, metrics=context.metrics)
    return RoleComponents(runnables=(worker,), background=(watch(context.bus, terms),))
