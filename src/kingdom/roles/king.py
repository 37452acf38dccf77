"""The king decides who gets what, and when."""

from kingdom.bus.dispatcher import Dispatcher
from kingdom.bus.worker import Worker
from kingdom.court.king.context import KingContext
from kingdom.court.king.reactions import STREAMS, register
from kingdom.court.king.timers import run_timers
from kingdom.roles.house import Cast, House


def cast(house: House) -> Cast:
    """Return what decides."""
    dispatcher, realm = Dispatcher(), house.realm
    terms = KingContext(settings=realm.king, packages=house.packages.all, zone=realm.zone)
    register(dispatcher, terms)
    # Two at a time would only rerun each other: both write the quotas.
    worker = Worker(house.bus, dispatcher, STREAMS, concurrency=1, metrics=house.metrics)
    return Cast(parts=(worker,), beside=(run_timers(house.bus, terms),))
