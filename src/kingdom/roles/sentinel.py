"""The sentinel watches what happens outside."""

from kingdom.court.sentinel.sentinel import Sentinel
from kingdom.roles.house import Cast, House


def cast(house: House) -> Cast:
    """Return what watches GitHub and Jira."""
    return Cast(parts=(Sentinel(house.bus, house.realm.sentinel),))
