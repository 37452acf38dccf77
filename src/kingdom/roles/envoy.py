"""The envoy tells people, and asks them."""

from kingdom.court.envoy.envoy import Envoy
from kingdom.roles.house import Cast, House


def cast(house: House) -> Cast:
    """Return what speaks with people."""
    return Cast(parts=(Envoy(house.bus, house.realm.envoy, zone=house.realm.zone, metrics=house.metrics),))
