"""The chamberlain watches over the house."""

from kingdom.bootstrap import operations_of
from kingdom.court.chamberlain.chamberlain import Chamberlain
from kingdom.roles.house import Cast, House


def cast(house: House) -> Cast:
    """Return what watches over the house."""
    watching = Chamberlain(
        house.bus,
        operations_of(house.bus),
        house.realm.chamberlain,
        zone=house.realm.zone,
        directory=house.directory,
    )
    return Cast(parts=(watching,))
