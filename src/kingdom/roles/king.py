"""The King turns events into assignments."""

from kingdom.bus.worker import Worker
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.court.king.context import KingContext
from kingdom.court.king.reactions import STREAMS, register
from kingdom.court.king.timers import run_timers
from kingdom.roles.context import RoleComponents, RoleContext


def build(context: RoleContext) -> RoleComponents:
    """Return the components of the King."""
    dispatcher, realm = Dispatcher(), context.realm
    king_context = KingContext(settings=realm.king, packages=context.packages.all, zone=realm.zone)
    register(dispatcher, king_context)
    # Every decision writes the quotas, so concurrent decisions would only conflict.
    worker = Worker(context.bus, dispatcher, STREAMS, concurrency=1, metrics=context.metrics)
    return RoleComponents(runnables=(worker,), background=(run_timers(context.bus, king_context),))
