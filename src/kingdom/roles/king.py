"""The king decides who gets what, and when."""

from kingdom.bus.worker import Worker
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.court.king.reactions import STREAMS, register
from kingdom.court.king.terms import Terms
from kingdom.court.king.watch import watch
from kingdom.roles.house import Cast, House


def cast(house: House) -> Cast:
    """Return what decides."""
    dispatcher, realm = Dispatcher(), house.realm
    terms = Terms(settings=realm.king, packages=house.packages.all, zone=realm.zone)
    register(dispatcher, terms)
    # Two at a time would only rerun each other: both write the quotas.
    worker = Worker(house.bus, dispatcher, STREAMS, concurrency=1, metrics=house.metrics)
    return Cast(parts=(worker,), beside=(watch(house.bus, terms),))
